package control

import "testing"

// TestKeepOneByOne: leases that are deleted, or expire, are kept if they are more than half of those that there
// were, however they go. Fewer are not, and neither is what comes and goes.
func TestKeepOneByOne(t *testing.T) {
	a, b, c, d := lease("10.3.2.0/24", 2, 53), lease("10.3.3.0/24", 3, 54), lease("10.3.4.0/24", 4, 55), lease("10.3.5.0/24", 5, 56)
	all := Update{Reset: true, Leases: []Lease{a, b, c, d}}
	gone := func(leases ...Lease) (u Update) {
		for _, l := range leases {
			u.Deleted = append(u.Deleted, l.Key())
		}
		return u
	}
	again := Update{Leases: []Lease{lease("10.3.2.0/24", 2, 73), lease("10.3.3.0/24", 3, 74), lease("10.3.4.0/24", 4, 75), lease("10.3.5.0/24", 5, 76)}}
	young, second := lease("10.3.6.0/24", 6, 90), lease("10.3.2.0/24", 2, 91)
	for _, tt := range []struct {
		name    string
		updates []Update
		kept    int
		peers   int
	}{
		{"half", []Update{all, gone(a), gone(b)}, 0, 2},
		{"more than half", []Update{all, gone(a), gone(b), gone(c)}, 3, 4},
		{"all in one", []Update{all, gone(a, b, c, d)}, 4, 4},
		{"and one more", []Update{all, gone(a, b, c), gone(d)}, 4, 4},
		{"one has come back", []Update{all, gone(a, b, c), {Leases: []Lease{b}}}, 2, 4},
		{"back before the next one goes", []Update{all, gone(a), gone(b), {Leases: []Lease{a}}, gone(c)}, 0, 2},
		{"a reset lacks the rest", []Update{all, gone(a), {Reset: true, Leases: []Lease{d, c}}, {Reset: true, Leases: []Lease{d}}}, 3, 4},
		{"what comes and goes", []Update{all, gone(a), gone(b), {Leases: []Lease{young}}, gone(young)}, 0, 2},
		{"all, back, and all again", []Update{all, gone(a, b, c, d), again, gone(a), gone(b), gone(c), gone(d)}, 4, 4},
		{"all, back but for one, and all again by resets", []Update{all, gone(a, b, c, d), again, {Deleted: []string{d.Key()}}, {Reset: true}}, 3, 3},
		{"all, back, and one goes", []Update{all, gone(a, b, c, d), again, gone(a)}, 0, 3},
		{"one goes, comes back, and goes with all", []Update{all, gone(a), {Leases: []Lease{second}}, gone(second, b, c, d)}, 4, 4},
		{"one goes, comes back, and goes after most", []Update{all, gone(a), {Leases: []Lease{second}}, gone(b, c, d), gone(second)}, 4, 4},
		{"one goes, comes back, and goes", []Update{all, gone(a), {Leases: []Lease{second}}, gone(second)}, 0, 3},
		{"what comes and goes, and then most", []Update{all, gone(a), {Leases: []Lease{young}}, gone(young, b, c)}, 4, 5},
		{"one node leaves the other alone", []Update{{Reset: true, Leases: []Lease{a}}, gone(a)}, 0, 0},
	} {
		for _, slowly := range []bool{false, true} { // Resolve comes after each update
			r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
			for _, u := range tt.updates {
				r.Apply(u)
				if before, _ := r.Len(); r.Doubted()+r.Kept() > before {
					t.Errorf("%s: %d of %d are doubted, %d kept", tt.name, r.Doubted(), before, r.Kept())
				}
				if slowly {
					r.Resolve()
				}
			}
			if all, _ := r.Peers(newcomer()); len(all) != tt.peers+r.Doubted() {
				t.Errorf("%s: %d peers before Resolve, want %d and %d", tt.name, len(all), tt.peers, r.Doubted())
			}
			r.Resolve()
			if peers, _ := r.Peers(newcomer()); r.Kept() != tt.kept || r.Doubted() != 0 || len(peers) != tt.peers {
				t.Errorf("%s: %d kept, %d doubted, %d peers, want %d, none and %d", tt.name, r.Kept(), r.Doubted(), len(peers), tt.kept, tt.peers)
			}
			r.DropKept()
			r.Settle()
			if before, _ := r.Len(); before > 1 && r.Lost() {
				t.Errorf("%s: after Settle a loss goes on", tt.name)
			}
		}
	}
}
