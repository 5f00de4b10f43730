package controller

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestLeasesFileHasIncumbents: a daemon that starts again knows who had what, and nothing of leases that are refused.
func TestLeasesFileHasIncumbents(t *testing.T) {
	t.Parallel()
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/8","SubnetLen":26}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}
	of := func(i int, network byte) control.Lease {
		subnet, public := netip.AddrFrom4([4]byte{network, 0, byte(i), 0}), address(192<<24+168<<16+i)
		return control.Lease{Subnet: netip.PrefixFrom(subnet, 26), PublicIP: public, BackendType: control.BackendVXLAN,
			Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(i)}
	}
	f := newFollower(New(cfg))
	self := of(1, 10)
	f.c.setLease(self, func(*Stats) {})
	f.apply(t.Context(), []control.Update{{Reset: true, Leases: []control.Lease{self, of(2, 10), of(3, 10), of(4, 11)}}})
	f.sync(t.Context())
	f.writeLeases(t.Context())
	again := newFollower(New(cfg))
	was, is := f.rib.Incumbents(), again.rib.Incumbents()
	for i := range was.Peers {
		was.Peers[i].Subnets = nil
	}
	if len(was.Peers) != 2 || !reflect.DeepEqual(was, is) {
		t.Errorf("knows %+v, want %+v", is, was)
	}
	if all, _ := again.rib.Len(); all != 3 {
		t.Errorf("remembers %d leases, want those that may be used", all)
	}
}
