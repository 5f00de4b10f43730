package etcd_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// TestRestoreBesideDaemons: two nodes serve on what they have, and a third one sends to them all the time, though a restore
// brings back a time at which the one had the subnet of the other.
func TestRestoreBesideDaemons(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/16","SubnetMin":"10.5.2.0","SubnetMax":"10.5.4.0","Backend":{"Type":"vxlan"}}`))
	two, three, four := netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("10.5.3.0/24"), netip.MustParsePrefix("10.5.4.0/24")
	operator := c.open(t)
	former, formerPlane := runController(t, c, 1, three)
	_, peer := runController(t, c, 3, four)
	c.snapshot(t, operator)
	if _, err := operator.Revoke(t.Context(), three.String()); err != nil {
		t.Fatal(err)
	}
	has := func(of func() (control.Lease, bool), p netip.Prefix) func() bool {
		return func() bool { l, ok := of(); return ok && l.Subnet == p }
	}
	eventually(t, "the former holder has another subnet", has(func() (control.Lease, bool) { return leaseOf(former) }, two))
	holder, holderPlane := runController(t, c, 2, three)
	eventually(t, "the holder has the subnet", has(func() (control.Lease, bool) { return leaseOf(holder) }, three))
	routes := func(w dataplane.Wanted) map[netip.Prefix]byte {
		m := map[netip.Prefix]byte{}
		for _, p := range w.Peers {
			for _, s := range p.Subnets {
				m[s] = p.Addr.As4()[3]
			}
		}
		return m
	}
	right := func(w dataplane.Wanted) bool { r := routes(w); return r[two] == 1 && r[three] == 2 }
	eventually(t, "the peer's routes", func() bool { told := peer.all(); return right(told[len(told)-1]) })
	told, of1, of2 := len(peer.all()), len(formerPlane.all()), len(holderPlane.all())
	c.restore(t, operator)
	eventually(t, "the entries of today", func() bool {
		entries, err := operator.Entries(t.Context())
		return err == nil && len(entries) == 3 && slices.ContainsFunc(entries, func(e etcd.Entry) bool {
			return e.Lease.Subnet == two && e.Lease.PublicIP.As4()[3] == 1
		}) && slices.ContainsFunc(entries, func(e etcd.Entry) bool { return e.Lease.Subnet == three && e.Lease.PublicIP.As4()[3] == 2 })
	})
	eventually(t, "nobody keeps what the store has lost", func() bool { w := peer.all(); return right(w[len(w)-1]) })
	for _, w := range peer.all()[told:] {
		if !right(w) {
			t.Errorf("meanwhile the peer's routes are %v", routes(w))
		}
	}
	for i, told := range [][]dataplane.Wanted{formerPlane.all()[of1:], holderPlane.all()[of2:]} {
		for _, w := range told {
			if !slices.Equal(w.Subnets, []netip.Prefix{[]netip.Prefix{two, three}[i]}) {
				t.Errorf("meanwhile node %d serves %v", i+1, w.Subnets)
			}
		}
	}
}
