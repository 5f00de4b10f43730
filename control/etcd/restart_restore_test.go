package etcd_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// TestRestartAfterARestore: a daemon that starts again after a restore keeps what its pods have, as one that runs does.
func TestRestartAfterARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	before := mustDerive(t, s, 1, "10.5.3.0/24")
	c.snapshot(t, s)
	revoke(t, s, before)
	l := mustDerive(t, s, 1, "10.5.2.0/24")
	s.Close()
	again := c.open(t)
	c.restore(t, again)
	now, err := derived(t, again, 1, "10.5.2.0/24")
	if err != nil || now.Subnet != l.Subnet {
		t.Errorf("the node served %s (subnet.env), which nobody has, and has %s, %v after a restart", l.CIDRs(), now.CIDRs(), err)
	}
}

// TestRestartTakesAnothersLease: the entry that a restore has brought back is of a node that has another subnet by now. If its daemon
// starts again, it takes that up, from the node that serves it.
func TestRestartTakesAnothersLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoSubnets))
	c.shortLived()
	s, holder := c.open(t), c.open(t)
	ghost := mustDerive(t, s, 1, "10.5.3.0/24")
	c.snapshot(t, s, holder)
	revoke(t, s, ghost)
	mine := mustDerive(t, s, 1, "10.5.2.0/24")
	theirs := mustDerive(t, holder, 2, "10.5.3.0/24")
	s.Close()
	again := c.open(t)
	c.restore(t, again, holder)
	now, err := derived(t, again, 1, "10.5.2.0/24") // its subnet.env says what it serves, and nobody else has that
	var lost error
	eventually(t, "a decision", func() bool {
		_, lost = holder.Renew(t.Context(), theirs)
		return lost == nil || errors.Is(lost, control.ErrLost)
	})
	if err != nil || now.Subnet != mine.Subnet || lost != nil {
		t.Errorf("node 1 served %s and has %s, %v; node 2 served %s all the time, and its Renew says: %v", mine.CIDRs(), now.CIDRs(), err, theirs.CIDRs(), lost)
	}
}

// TestRestoredRevocation: a restore brings back the mark of a revocation that was over.
func TestRestoredRevocation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := mustDerive(t, s, 1, "10.5.3.0/24")
	revoke(t, s, l)
	c.snapshot(t, s)
	if err := s.Reserve(t.Context(), reserved(1, "10.5.3.0/24")); err != nil { // the operator gives it back
		t.Fatal(err)
	}
	l = mustDerive(t, s, 1, "10.5.3.0/24")
	c.restore(t, s)
	if _, err := s.Renew(t.Context(), l); err != nil {
		t.Errorf("Renew after the restore: %v", err)
	}
}

// TestRestoreBesideDaemonsDual is TestRestoreBesideDaemons in a network of two families: the former holder is gone, and had one of two subnets.
func TestRestoreBesideDaemonsDual(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(twoFamilies))
	three := netip.MustParsePrefix("10.5.3.0/24")
	p6 := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("fd05:0:0:%d::/64", i)) }
	operator := c.open(t)
	old := c.open(t)
	ghost := mustDerive(t, old, 9, three.String(), p6(9).String())
	for i := 5; i < 8; i++ { // of few nodes one that is drained is most of them, which peers keep
		mustDerive(t, c.open(t), i, fmt.Sprintf("10.5.%d.0/24", i), p6(i).String())
	}
	_, peer := runController(t, c, 3, netip.MustParsePrefix("10.5.4.0/24"), p6(4))
	c.snapshot(t, operator, old)
	if err := old.Release(t.Context(), ghost); err != nil { // node 9 is drained, and its host switched off
		t.Fatal(err)
	}
	holder, _ := runController(t, c, 2, three, p6(3))
	l, _ := leaseOf(holder)
	if l.Subnet != three || l.IPv6Subnet != p6(3) {
		t.Fatalf("the holder has %s", l.CIDRs())
	}
	to := func(w dataplane.Wanted) byte {
		for _, p := range w.Peers {
			if slices.Contains(p.Subnets, three) {
				return p.Addr.As4()[3]
			}
		}
		return 0
	}
	newest := func() dataplane.Wanted { told := peer.all(); return told[len(told)-1] }
	last := func() byte { return to(newest()) }
	eventually(t, "the peer's route, and the one who was drained is forgotten", func() bool { return last() == 2 && len(newest().Peers) == 4 })
	told := len(peer.all())
	c.restore(t, operator)
	eventually(t, "the holder puts its lease back", func() bool { return slices.Contains(c.Keys(t), l.Key()) })
	eventually(t, "the peer knows", func() bool { return last() == 2 })
	for _, w := range peer.all()[told:] {
		if at := to(w); at != 2 {
			t.Errorf("%s led to node %d after the restore, want 2", three, at)
		}
	}
}
