package control

import (
	"fmt"
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

// TestContest: a lease that is older than the own one, has its subnet and can be used by other nodes is told, however many others are refused.
func TestContest(t *testing.T) {
	self := lease("10.3.1.0/24", 1, 5)
	of := func(age int64, change func(*Lease)) Lease {
		l := lease("10.3.1.0/24", 2, age)
		if l.Claimant = "other"; change != nil {
			change(&l)
		}
		return l
	}
	for _, tt := range []struct {
		what  string
		other Lease
		want  string
	}{
		{"older", of(1, nil), ReasonContested},
		{"of the same second", of(5, nil), ReasonContested},
		{"younger", of(6, nil), "overlaps_own"},
		{"older, and nobody can use it", of(1, func(l *Lease) { l.Backend.VNI = 7 }), "wrong_vni"},
		{"older, and a part", with(lease("10.3.1.128/25", 2, 1), func(*Lease) {}), ReasonContested},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		r.Lengths = nil
		u := Update{Reset: true, Leases: []Lease{self, tt.other}}
		for i := range 2*maxRejected + 10 { // of an earlier time
			junk := lease("10.3.2.0/24", 3+i, 0)
			junk.Backend.VNI, junk.Claimant = 9, fmt.Sprint("junk", i)
			u.Leases = append(u.Leases, junk)
		}
		r.Apply(Update{Reset: true, Leases: u.Leases[:1]})
		r.Peers(self)
		for _, u := range []Update{u, {Leases: u.Leases[2:3]}} {
			r.Apply(u)
			_, rejected := r.Peers(self)
			i := slices.IndexFunc(rejected, func(x Rejection) bool { return x.Key == tt.other.Key() })
			if tt.want == ReasonContested && i < 0 {
				t.Errorf("%s: not told", tt.what)
			}
			if i >= 0 && Reason(rejected[i].Err) != tt.want {
				t.Errorf("%s: %v, want %s", tt.what, rejected[i].Err, tt.want)
			}
		}
	}
}
