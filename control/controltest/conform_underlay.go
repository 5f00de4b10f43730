package controltest

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
)

// acquireBesideUnderlay: a node keeps no subnet and chooses none that holds what it needs of its
// underlay, or a public IP that a lease names.
func acquireBesideUnderlay(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(`{"Network":"10.3.0.0/24","SubnetLen":26,"SubnetMin":"10.3.0.0"}`))
	n, vteps := node(1)
	other, _ := node(2)
	other.PublicIP = netip.MustParseAddr("10.3.0.130")
	own := foreign(1)
	if r, ok := h.(Reserver); ok {
		r.PutLeased(t, "10.3.0.0-26", own)
	} else {
		h.PutRaw(t, "10.3.0.0-26", own)
	}
	h.PutRaw(t, "10.3.7.0-26", value(other.PublicIP, vteps[0].MAC)) // outside, but its public IP is not
	n.Underlay = control.Underlay{
		Needs:  []control.Need{{Addr: netip.MustParseAddr("10.3.0.1"), What: "the default gateway of this host"}},
		OnLink: []netip.Prefix{netip.MustParsePrefix("10.3.0.64/28")},
	}
	l, err := h.Open(t).Acquire(t.Context(), n, vteps)
	if err != nil || l.Key() != "10.3.0.192-26" {
		t.Fatalf("acquired %s, %v; want 10.3.0.192-26", l.Key(), err)
	}
	if _, there := h.GetRaw(t, "10.3.0.0-26"); there {
		t.Error("the lease that cannot work is still there")
	}
	again, err := h.Open(t).Acquire(t.Context(), n, vteps)
	if err != nil || again.Subnet != l.Subnet {
		t.Errorf("after a restart acquired %s, %v", again.Key(), err)
	}
}
