package etcd_test

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// resident is a host that runs a Controller.
type resident struct {
	ip     netip.Addr
	subnet netip.Prefix
	plane  *plane
	ctl    *controller.Controller
	end    func()
	losses uint64 // until all had all peers
}

// join starts another host, which is said to have had subnets, and returns when it has a lease.
func (f *faulty) join(previous ...netip.Prefix) *resident {
	f.t.Helper()
	n, vteps := node(f.next)
	n.Previous = previous
	f.next++
	r := &resident{ip: n.PublicIP, plane: &plane{vteps: vteps}}
	s, err := etcd.Open(context.Background(), f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	network, err := s.Network(f.t.Context())
	eventually(f.t, "the network config", func() bool {
		network, err = s.Network(f.t.Context())
		return err == nil
	})
	r.ctl = controller.New(controller.Config{Store: s, Overlay: r.plane, Node: n, Network: network, MTU: 1450, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.ctl.Run(ctx) }()
	ended := false
	r.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
		s.Close()
	}
	f.t.Cleanup(r.end)
	eventually(f.t, "a lease", func() bool {
		l, held := leaseOf(r.ctl) // after the dataplane was told: the status follows
		r.subnet = l.Subnet
		return held && len(r.plane.all()) > 0
	})
	return r
}

// last is what the dataplane was told last.
func (r *resident) last() dataplane.Wanted {
	all := r.plane.all()
	return all[len(all)-1]
}

// in reports whether w leads to a host.
func (r *resident) in(w dataplane.Wanted) bool {
	return slices.ContainsFunc(w.Peers, func(p dataplane.Peer) bool { return slices.Contains(p.Subnets, r.subnet) && p.VTEP.Addr == r.ip })
}

// see waits until all who stay have these peers. What they lose from then on is lost.
func (f *faulty) see(peers []*resident) {
	f.t.Helper()
	eventually(f.t, "all have all peers", func() bool {
		for _, r := range f.stay {
			for _, p := range peers {
				if p != r && !p.in(r.last()) {
					return false
				}
			}
		}
		return true
	})
	for _, r := range f.stay {
		r.losses = r.ctl.Status().Stats.Losses
	}
}

// free returns a subnet that nobody has.
func (f *faulty) free() netip.Prefix {
	for i := byte(1); ; i++ {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, i, 0}), 24)
		if !slices.ContainsFunc(f.stay, func(r *resident) bool { return r.subnet == p }) {
			return p
		}
	}
}

// recovers checks that etcd is used again at once, and that nobody has lost anything since all had all peers.
func (f *faulty) recovers() {
	f.t.Helper()
	soon := cmp.Or(f.soon, 10*time.Second)
	begin := time.Now()
	joiner := f.join(f.free()) // an etcd that is empty yet would let it take the subnet of one who stays
	eventually(f.t, "all have the one who joined", func() bool {
		return !slices.ContainsFunc(f.stay, func(r *resident) bool { return !joiner.in(r.last()) })
	})
	eventually(f.t, "all leases are renewed", func() bool {
		return !slices.ContainsFunc(f.stay, func(r *resident) bool {
			s := r.ctl.Status()
			return !s.Held || s.LeaseFault.Reason != "" || time.Until(s.Lease.Expires) < 0
		})
	})
	took := time.Since(begin)
	f.t.Logf("back after %s", took.Round(10*time.Millisecond))
	if took > soon {
		f.t.Errorf("back after %s, want %s", took, soon)
	}
	f.nothingLost()
}

func (f *faulty) nothingLost() {
	f.t.Helper()
	for _, r := range f.stay {
		complete := false
		for _, w := range r.plane.all() {
			has := 0
			for _, p := range f.stay {
				if p != r && p.in(w) {
					has++
				}
			}
			if complete && (has < len(f.stay)-1 || !slices.Contains(w.Subnets, r.subnet)) {
				f.t.Errorf("%s had %s and %d peers that stay; then it was told %v", r.ip, r.subnet, len(f.stay)-1, w)
			}
			complete = complete || has == len(f.stay)-1
		}
		if s := r.ctl.Status(); s.Stats.Losses > r.losses {
			f.t.Errorf("%s lost its lease %d times: %+v", r.ip, s.Stats.Losses, s.LeaseFault)
		}
	}
}
