package etcd_test

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// plane is a Dataplane that remembers what it was told.
type plane struct {
	vteps []dataplane.VTEP

	mu   sync.Mutex
	told []dataplane.Wanted
}

func (p *plane) VTEPs() []dataplane.VTEP       { return p.vteps }
func (p *plane) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (p *plane) Stats() dataplane.Stats        { return dataplane.Stats{} }

func (p *plane) Sync(_ context.Context, w dataplane.Wanted) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, w)
	return nil
}

func (p *plane) all() []dataplane.Wanted {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]dataplane.Wanted(nil), p.told...)
}

// runController runs a Controller of node i until the test ends.
func runController(t *testing.T, c *cluster, i int, previous ...netip.Prefix) (*controller.Controller, *plane) {
	t.Helper()
	s := c.open(t)
	n, vteps := node(i)
	n.Previous = previous
	network, err := s.Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{vteps: vteps}
	ctl := controller.New(controller.Config{Store: s, Overlay: p, Node: n, Network: network, MTU: 1450, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	eventually(t, "a first Sync", func() bool { return len(p.all()) > 0 })
	return ctl, p
}

// TestOperatorAndDaemons: what an operator does, and what the daemons make of it. Only a
// revocation changes anything for the dataplanes.
func TestOperatorAndDaemons(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	operator := c.open(t)
	subnet := netip.MustParsePrefix("10.5.5.0/24")
	owner, _ := runController(t, c, 1, subnet)
	_, peer := runController(t, c, 2, netip.MustParsePrefix("10.5.6.0/24"))
	route := func() netip.Prefix { // of the peer, to the owner
		told := peer.all()
		if w := told[len(told)-1]; len(w.Peers) == 1 {
			return w.Peers[0].Subnets[0]
		}
		return netip.Prefix{}
	}
	eventually(t, "the peer's route", func() bool { return route() == subnet })
	syncs := len(peer.all())
	for range 3 {
		if err := operator.Reserve(t.Context(), reserved(1, subnet.String())); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the owner has a reservation", func() bool { l, _ := leaseOf(owner); return l.Handle == 0 && l.Expires.IsZero() })
		if _, _, err := operator.Unreserve(t.Context(), subnet.String()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the owner has a lease", func() bool { l, _ := leaseOf(owner); return l.Handle != 0 && !l.Expires.IsZero() })
	}
	if got := len(peer.all()); got != syncs || owner.Status().Stats.Losses != 0 {
		t.Errorf("%d Syncs of the peer, %d losses of the owner, want none", got-syncs, owner.Status().Stats.Losses)
	}
	if _, err := operator.Revoke(t.Context(), subnet.String()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the owner has another lease", func() bool { l, ok := leaseOf(owner); return ok && l.Subnet != subnet })
	l, _ := leaseOf(owner)
	eventually(t, "the peer's other route", func() bool { return route() == l.Subnet })
	if keys := c.Keys(t); len(keys) != 2 || owner.Status().Stats.Losses != 1 {
		t.Errorf("entries %v, %d losses", keys, owner.Status().Stats.Losses)
	}
}

// leaseOf returns the lease that a Controller has now.
func leaseOf(c *controller.Controller) (l control.Lease, held bool) {
	s := c.Status()
	return s.Lease, s.Held
}
