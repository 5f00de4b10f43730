package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

type nullOverlay struct{}

func (nullOverlay) VTEPs() []dataplane.VTEP { return nil }

func (nullOverlay) Sync(context.Context, dataplane.Wanted) error { return nil }

// address is the IPv4 address with this number.
func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// BenchmarkSync is one change of one lease among many: RIB, Peers, and the Status.
func BenchmarkSync(b *testing.B) {
	n, err := control.ParseNetwork([]byte(`{"Network":"10.0.0.0/8","SubnetLen":26}`))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1000, 5000, 100_000} {
		leases := make([]control.Lease, size)
		for i := range leases {
			subnet, public := address(10<<24+(i+1)<<6), address(192<<24+168<<16+i+2)
			leases[i] = control.Lease{Subnet: netip.PrefixFrom(subnet, 26), PublicIP: public, BackendType: control.BackendVXLAN,
				Backend: control.VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(size - i)}
		}
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			f := newFollower(New(Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler)}))
			f.c.setLease(leases[0], func(*Stats) {})
			f.apply(b.Context(), []control.Update{{Reset: true, Leases: leases}})
			f.sync(b.Context())
			last := leases[size-1:]
			if got := f.done; got == nil || len(got.Peers) != size-1 {
				b.Fatalf("%+v", got)
			}
			for i := 0; b.Loop(); i++ {
				u := control.Update{Leases: last}
				if i%2 == 0 {
					u = control.Update{Deleted: []string{last[0].Key()}}
				}
				f.apply(b.Context(), []control.Update{u})
				f.sync(b.Context())
			}
		})
	}
}
