package control

import (
	"errors"
	"net/netip"
	"testing"
)

func TestParsePodNetwork(t *testing.T) {
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`, true},
		{`{"Network":"10.244.0.0/16","SubnetLen":8,"SubnetMin":"x","SubnetMax":"1.2.3.4"}`, true},
		{`{"Network":"10.244.0.0/29"}`, true},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10::/126"}`, true},
		{`{"Network":"127.0.0.0/16"}`, false},
		{`{"Network":""}`, false},
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`, true},
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}`, true},
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"ipip"}}`, false},
	} {
		n, err := ParsePodNetwork([]byte(c.text))
		var bad *NetworkError
		if (err == nil) != c.ok || err != nil && !errors.As(err, &bad) || n.SubnetLen != 0 || n.SubnetMin.IsValid() {
			t.Errorf("%s: %+v, %v", c.text, n, err)
		}
	}
}

func TestPodNetworkHoldsAnyLength(t *testing.T) {
	n, err := ParsePodNetwork([]byte(`{"Network":"10.3.0.0/16"}`))
	if err != nil {
		t.Fatal(err)
	}
	for subnet, want := range map[string]bool{"10.3.0.0/16": true, "10.3.0.0/24": true, "10.3.255.255/32": true, "10.3.4.0/22": true,
		"10.0.0.0/8": false, "10.4.0.0/24": false, "fd10::/64": false} {
		p := netip.MustParsePrefix(subnet)
		if got := n.Contains(p); got != want {
			t.Errorf("contains %s: %v", p, got)
		}
		if got := Compatible(n, p, netip.Prefix{}); got != want {
			t.Errorf("compatible with %s: %v", p, got)
		}
	}
}

func TestParseVTEPData(t *testing.T) {
	for text, want := range map[string]string{"{": `x "{" is not JSON`, `{"VNI":-1,"VtepMAC":"3e:01:02:03:04:05"}`: "x.VNI -1 is not in 0..16777215", "": `x "" is not JSON`} {
		if d, err := ParseVTEPData("x", text); err == nil || err.Error() != want {
			t.Errorf("%s: %+v, %v, want %s", text, d, err, want)
		}
	}
}
