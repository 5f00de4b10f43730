package controller

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestStatusFollowsNames: a peer has the name of the lease's node, which may become another one without anything else of it.
func TestStatusFollowsNames(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/16"}`))
	if err != nil {
		t.Fatal(err)
	}
	of := func(i byte, name string) control.Lease {
		public := netip.AddrFrom4([4]byte{192, 168, 0, i})
		return control.Lease{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, i, 0}), 24), PublicIP: public, BackendType: control.BackendVXLAN,
			Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(i), Facts: control.NodeFacts{}.WithName(name)}
	}
	f := newFollower(New(Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler)}))
	f.c.setLease(of(1, ""), func(*Stats) {})
	refused := of(3, "")
	refused.Backend.VNI = 7
	for _, name := range []string{"", "n2", "n2b"} {
		refused.Facts = refused.Facts.WithName("not-" + name)
		f.apply(t.Context(), []control.Update{{Reset: true, Leases: []control.Lease{of(1, ""), of(2, name), refused}}})
		f.sync(t.Context())
		s := f.c.Status()
		if len(s.Peers) != 2 || s.Peers[0].Name != name || s.Peers[1].Name != "not-"+name || s.Rejected[0].Name != "not-"+name {
			t.Errorf("the peer %q and the refused one have the status %+v, rejected %+v", name, s.Peers, s.Rejected)
		}
	}
	if syncs := f.c.Status().Stats.Syncs; syncs != 1 {
		t.Errorf("%d syncs, want one", syncs)
	}
}
