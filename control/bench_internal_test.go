package control

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

type nullOverlay struct{}

func (nullOverlay) VTEPs() []dataplane.VTEP { return nil }

func (nullOverlay) Sync(context.Context, dataplane.Wanted) error { return nil }

// BenchmarkSync is one change of one lease among many: RIB, Peers, and the Status.
func BenchmarkSync(b *testing.B) {
	n := network(b, `{"Network":"10.0.0.0/8","SubnetLen":26}`)
	r4, _ := n.ipv4()
	for _, size := range []int{1000, 5000, 100_000} {
		leases := make([]Lease, size)
		for i := range leases {
			leases[i] = lease(r4.subnetAt(uint64(i+1)).String(), i+2, int64(size-i))
		}
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			f := newFollower(New(Config{Network: n, Overlay: nullOverlay{}, Log: slog.New(slog.DiscardHandler)}))
			f.c.setLease(leases[0], func(*Stats) {})
			f.apply(b.Context(), []Update{{Reset: true, Leases: leases}})
			f.sync(b.Context())
			last := leases[size-1:]
			if got := f.done; got == nil || len(got.Peers) != size-1 {
				b.Fatalf("%+v", got)
			}
			for i := 0; b.Loop(); i++ {
				u := Update{Leases: last}
				if i%2 == 0 {
					u = Update{Deleted: []string{last[0].Key()}}
				}
				f.apply(b.Context(), []Update{u})
				f.sync(b.Context())
			}
		})
	}
}
