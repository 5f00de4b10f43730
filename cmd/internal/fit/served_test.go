package fit

import (
	"strings"
	"testing"

	"github.com/overlayd/overlayd/control"
)

func TestServed(t *testing.T) {
	config := func(text string) control.Network {
		n, err := control.ParseNetwork([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var o Served
	remove, err := o.Add("red", config(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, says string }{
		{`{"Network":"10.6.0.0/16"}`, "Backend.VNI 1 is that of network red"},
		{`{"Network":"10.5.128.0/17","Backend":{"Type":"vxlan","VNI":2}}`, "10.5.128.0/17 overlaps 10.5.0.0/16 of network red"},
		{`{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","VNI":2}}`, "10.0.0.0/8 overlaps 10.5.0.0/16 of network red"},
		{`{"Network":"10.6.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/56","Backend":{"Type":"vxlan","VNI":2}}`, "fd00:5::/56 overlaps fd00:5::/48 of network red"},
		{`{"Network":"10.6.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:6::/48","Backend":{"Type":"vxlan","VNI":2}}`, ""},
	} {
		remove, err := o.Add("blue", config(c.text))
		if err == nil {
			remove()
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.text, err, c.says)
		}
	}
	remove()
	if _, err := o.Add("blue", config(`{"Network":"10.5.0.0/16"}`)); err != nil {
		t.Error(err)
	}
}
