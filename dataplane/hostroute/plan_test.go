package hostroute

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	b, c := hop{addr("192.0.2.3"), 2}, hop{addr("192.0.2.4"), 2}
	subnet, own := prefix("10.5.2.0/24"), prefix("10.5.1.0/24")
	direct := func(o owner, h hop) route { return route{dst: subnet, owner: o, hop: h} }
	overDevice := route{dst: subnet, owner: device, hop: hop{addr("10.5.2.0"), 7}}
	covering := route{dst: prefix("10.5.0.0/16"), owner: device, hop: hop{link: 7}}
	black := route{dst: own, blackhole: true, metric: blackholeMetric}
	flannels := route{dst: own, owner: flannel, blackhole: true}
	wantB := goal{direct: map[netip.Prefix]hop{subnet: b}}
	back := goal{encapsulated: set("10.5.2.0/24")}
	late := back
	late.overdue = func(netip.Prefix) bool { return true }
	for _, tc := range []struct {
		name string
		have []route
		goal goal
		want []op
		left []netip.Prefix
	}{
		{name: "nothing"},
		{name: "new", goal: wantB, want: []op{{add, direct(ours, b)}}},
		{name: "there", have: []route{direct(ours, b)}, goal: wantB},
		{name: "through another", have: []route{direct(ours, c)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "in the place of the device's", have: []route{overDevice}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "flannel's adopted", have: []route{direct(flannel, b)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "flannel's through another", have: []route{direct(flannel, c)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "beside the wide one", have: []route{covering}, goal: wantB, want: []op{{add, direct(ours, b)}}},
		{name: "peer gone", have: []route{direct(ours, b)}, want: []op{{remove, direct(ours, b)}}},
		{name: "peer gone, flannel's", have: []route{direct(flannel, b)}, want: []op{{remove, direct(flannel, b)}}},
		{name: "device's is not ours", have: []route{overDevice, covering}},
		{name: "off-link, left to the dataplane", have: []route{direct(ours, b)}, goal: back, left: []netip.Prefix{subnet}},
		{name: "off-link, overdue", have: []route{direct(ours, b)}, goal: late, want: []op{{remove, direct(ours, b)}}},
		{name: "off-link, covered", have: []route{direct(ours, b), covering}, goal: back, want: []op{{remove, direct(ours, b)}}},
		{name: "off-link, flannel's", have: []route{direct(flannel, b)}, goal: back, left: []netip.Prefix{subnet},
			want: []op{{replace, direct(ours, b)}}},
		{name: "blackhole", goal: goal{blackholes: []netip.Prefix{own}}, want: []op{{add, black}}},
		{name: "blackhole there", have: []route{black}, goal: goal{blackholes: []netip.Prefix{own}}},
		{name: "blackhole of flannel", have: []route{flannels}, goal: goal{blackholes: []netip.Prefix{own}},
			want: []op{{add, black}, {remove, flannels}}},
		{name: "blackhole no longer", have: []route{black, flannels}, want: []op{{remove, flannels}, {remove, black}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.goal.overdue == nil {
				tc.goal.overdue = func(netip.Prefix) bool { return false }
			}
			ops, left := plan(tc.have, tc.goal)
			if diff := cmp.Diff(tc.want, ops, byValue); diff != "" {
				t.Errorf("operations: want (-), got (+):\n%s", diff)
			}
			if diff := cmp.Diff(tc.left, left, byValue); diff != "" {
				t.Errorf("left: want (-), got (+):\n%s", diff)
			}
		})
	}
}

// From any state to any goal the plan leads to what is wanted, and a second plan is empty.
func TestPlanLeadsFromAnyStateToAnyOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	subnet := func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24) }
	randomHop := func() hop { return hop{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + r.IntN(2))}), 1 + r.IntN(2)} }
	for range 2000 {
		var have []route
		g := goal{direct: map[netip.Prefix]hop{}, encapsulated: map[netip.Prefix]bool{}, overdue: func(netip.Prefix) bool { return r.IntN(2) == 0 }}
		for i := range 6 {
			if r.IntN(2) == 0 {
				have = append(have, route{dst: subnet(i), owner: owner(r.IntN(3)), hop: randomHop()})
			}
			switch r.IntN(3) {
			case 0:
				g.direct[subnet(i)] = randomHop()
			case 1:
				g.encapsulated[subnet(i)] = true
			}
		}
		if r.IntN(4) == 0 {
			have = append(have, route{dst: prefix("10.5.0.0/16"), owner: device})
		}
		ops, left := plan(have, g)
		have = applied(have, ops)
		g.overdue = func(netip.Prefix) bool { return false }
		if again, still := plan(have, g); len(again) != 0 || !cmp.Equal(left, still, byValue) {
			t.Fatalf("left to do: %v; left to the dataplane %v, then %v", again, left, still)
		}
		at := map[netip.Prefix]route{}
		for _, x := range have {
			if _, twice := at[x.dst]; twice {
				t.Fatalf("two routes to %s", x.dst)
			}
			at[x.dst] = x
			if x.owner == flannel || x.owner == ours && g.direct[x.dst] != x.hop && !g.encapsulated[x.dst] {
				t.Fatalf("%v stays", x)
			}
		}
		for dst, h := range g.direct {
			if at[dst] != (route{dst: dst, hop: h}) {
				t.Fatalf("%s is %v, want %v", dst, at[dst], h)
			}
		}
	}
}
