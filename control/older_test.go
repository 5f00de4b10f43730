package control

import "testing"

// TestOlder: after the store went back to an earlier state, the nodes that had subnets before stay in their places until
// they have put their entries back, or for as long as what is kept. What comes later counts again.
func TestOlder(t *testing.T) {
	at := func(l Lease, revision int64) Lease { l.ModRevision = revision; return l }
	a, b, c := at(lease("10.3.2.0/24", 2, 53), 53), at(lease("10.3.3.0/24", 3, 54), 54), at(lease("10.3.4.0/24", 4, 55), 55)
	former := at(lease("10.3.3.0/24", 4, 20), 20) // of the node of c, in the place of b
	reset := func(older bool, leases ...Lease) Update { return Update{Reset: true, Older: older, Leases: leases} }
	for _, tt := range []struct {
		name    string
		updates []Update
		kept    int
		node    int // that 10.3.3.0/24 leads to; 0: none
	}{
		{"another node, later", []Update{reset(false, a, at(former, 60))}, 1, 4},
		{"a restore that the store does not tell", []Update{reset(false, a, former)}, 2, 3},
		{"a restore", []Update{reset(true, a, former)}, 2, 3},
		{"and a reset", []Update{reset(true, a, former), reset(false, a, former)}, 2, 3},
		{"the holder puts its entry back", []Update{reset(true, a, former), {Leases: []Lease{c, at(b, 30)}}}, 0, 3},
		{"the former holder writes its entry", []Update{reset(true, a, former), {Leases: []Lease{c, at(former, 30)}}}, 0, 4},
		{"the former holder deletes its entry", []Update{reset(true, a, former), {Leases: []Lease{c}, Deleted: []string{former.Key()}}}, 1, 3},
		{"facts of the former holder", []Update{reset(true, a, former), {Leases: []Lease{c, former}}}, 1, 3},
		{"the same node", []Update{reset(true, a, at(b, 20), c)}, 0, 3},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		r.Apply(reset(false, a, b, c))
		for _, u := range tt.updates {
			r.Settle()
			r.Apply(u)
		}
		if got := nodeOf(r, b.Subnet.String()); got != tt.node || r.Kept() != tt.kept {
			t.Errorf("%s: %d kept, the subnet is of node %d, want %d and %d", tt.name, r.Kept(), got, tt.kept, tt.node)
		}
	}
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	r.Apply(reset(false, a, b, c))
	r.Apply(reset(true, a, former))
	r.DropKept()
	if got := nodeOf(r, b.Subnet.String()); got != 4 || r.Kept() != 0 {
		t.Errorf("at the end %d are kept, the subnet is of node %d, want 0 and 4", r.Kept(), got)
	}
	r = NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	r.Apply(reset(false, a, b, c))
	r.Apply(reset(true, a, former))
	r.Apply(reset(false, a, c)) // it was deleted while nobody watched
	r.DropKept()
	if got := nodeOf(r, b.Subnet.String()); got != 0 || r.Kept() != 0 {
		t.Errorf("at the end %d are kept, the subnet is of node %d, want 0 and none: the store has no lease for it", r.Kept(), got)
	}
}

// nodeOf returns the last byte of the address that a subnet leads to.
func nodeOf(r *RIB, subnet string) int {
	peers, _ := r.Peers(newcomer())
	for _, p := range peers {
		for _, s := range p.Subnets {
			if s.String() == subnet {
				return int(p.Addr.As4()[3])
			}
		}
	}
	return 0
}

// TestOlderOverlap: as TestOlder, but the holder of today shares only one family's subnet with the entry that a restore has brought back.
func TestOlderOverlap(t *testing.T) {
	at := func(l Lease, v6 string, revision int64) Lease {
		l.IPv6Subnet, l.ModRevision = prefix(v6), revision
		return l
	}
	a := at(lease("10.3.2.0/24", 2, 53), "fd03:0:0:2::/64", 53)
	b := at(lease("10.3.3.0/24", 3, 54), "fd03:0:0:3::/64", 54)      // today's holder
	former := at(lease("10.3.3.0/24", 4, 20), "fd03:0:0:9::/64", 20) // drained long ago; back by the restore
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd03::/48"}`))
	r.Apply(Update{Reset: true, Leases: []Lease{a, b}})
	if got := nodeOf(r, "10.3.3.0/24"); got != 3 {
		t.Fatalf("before: node %d", got)
	}
	r.Settle()
	r.Apply(Update{Reset: true, Older: true, Leases: []Lease{a, former}})
	if got := nodeOf(r, "10.3.3.0/24"); got != 3 {
		t.Errorf("after the restore 10.3.3.0/24 leads to node %d, want 3, which lives (%d kept)", got, r.Kept())
	}
	again := former
	again.ModRevision = 60
	r.Apply(Update{Leases: []Lease{again}})
	r.Apply(Update{Deleted: []string{former.Key()}})
	r.DropKept()
	if got := nodeOf(r, "10.3.3.0/24"); got != 0 {
		t.Errorf("after the end of both 10.3.3.0/24 leads to node %d", got)
	}
	// The lease that is lacking comes back in a list, and with it what was held back.
	r = NewRIB(network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd03::/48"}`))
	r.Apply(Update{Reset: true, Leases: []Lease{a, b}})
	r.Settle()
	r.Apply(Update{Reset: true, Older: true, Leases: []Lease{a, former}})
	b.ModRevision, b.CreateRevision = 70, 70
	r.Apply(Update{Reset: true, Leases: []Lease{a, former, b}})
	if got := r.Kept(); got != 0 || len(r.older) != 0 {
		t.Errorf("%d kept, %d held back after all are back", got, len(r.older))
	}
}
