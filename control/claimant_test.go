package control

import (
	"slices"
	"testing"
)

// TestClaimants: of several leases of the same subnets the oldest that can be used holds, and what comes of the others is no loss.
func TestClaimants(t *testing.T) {
	of := func(i int, age int64, change func(*Lease)) Lease {
		l := lease("10.3.2.0/24", i, age)
		if change != nil {
			change(&l)
		}
		return l
	}
	claim := func(l Lease) Lease { l.Claimant = "younger"; return l }
	good, claimed := of(9, 9, nil), claim(of(9, 9, nil))
	self := lease("10.3.1.0/24", 1, 1)
	for _, tt := range []struct {
		what  string
		older Lease
		holds int // whose VTEP
	}{
		{"a good one", of(2, 2, nil), 2},
		{"wrong VNI", of(2, 2, func(l *Lease) { l.Backend.VNI = 7 }), 9},
		{"another backend", of(2, 2, func(l *Lease) { l.BackendType = BackendHostGW }), 9},
		{"public IP of nobody", of(2, 2, func(l *Lease) { l.PublicIP = addr("255.255.255.255") }), 9},
		{"public IP of this node", of(1, 2, nil), 9},
		{"MAC of this node", of(2, 2, func(l *Lease) { l.Backend.MAC = self.Backend.MAC }), 9},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		for step, u := range []Update{
			{Reset: true, Leases: []Lease{self, tt.older, claimed}},
			{Reset: true, Leases: []Lease{self, tt.older, claimed}},
			{Leases: []Lease{good}, Deleted: []string{claimed.Key()}}, // the older one goes
		} {
			want := tt.holds
			if step == 2 {
				want = 9
			}
			r.Apply(u)
			peers, rejected := r.Peers(self)
			if len(peers) != 1 || peers[0].Addr != nodeAddr(want) || !slices.Contains(peers[0].Subnets, prefix("10.3.2.0/24")) {
				t.Errorf("%s, step %d: the peers are %v, want node %d", tt.what, step, peers, want)
			}
			if refused := len(rejected); step < 2 && refused != 1 || step == 2 && refused != 0 {
				t.Errorf("%s, step %d: refused %v", tt.what, step, rejected)
			}
		}
		if r.Lost() || r.Kept()+r.Doubted() > 0 {
			t.Errorf("%s: the end of a claim is a loss", tt.what)
		}
	}
	if got := CIDRsOf(claimed.Key()); claimed.Key() != "10.3.2.0-24@younger" || got != "10.3.2.0/24" {
		t.Errorf("the key %s is of %s", claimed.Key(), got)
	}
}
