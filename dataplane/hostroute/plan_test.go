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
	for _, tc := range []struct {
		name  string
		have  []route
		goal  goal
		want  []op
		stale []op
	}{
		{name: "nothing"},
		{name: "new", goal: wantB, want: []op{{add, direct(ours, b)}}},
		{name: "there", have: []route{direct(ours, b)}, goal: wantB},
		{name: "through another", have: []route{direct(ours, c)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "in the place of the device's", have: []route{overDevice}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "flannel's adopted", have: []route{direct(flannel, b)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "flannel's through another", have: []route{direct(flannel, c)}, goal: wantB, want: []op{{replace, direct(ours, b)}}},
		{name: "beside the wide one", have: []route{covering}, goal: wantB, want: []op{{add, direct(ours, b)}}},
		{name: "device's is not ours", have: []route{overDevice, covering}},
		{name: "no longer wanted", have: []route{direct(ours, b)}, stale: []op{{remove, direct(ours, b)}}},
		{name: "no longer wanted, covered", have: []route{direct(ours, b), covering}, stale: []op{{remove, direct(ours, b)}}},
		{name: "no longer wanted, flannel's", have: []route{direct(flannel, b)},
			want: []op{{replace, direct(ours, b)}}, stale: []op{{remove, direct(ours, b)}}},
		{name: "no longer wanted, flannel's, which cannot be adopted", have: []route{direct(flannel, b)},
			goal: goal{refused: map[netip.Prefix]bool{subnet: true}}, stale: []op{{remove, direct(flannel, b)}}},
		{name: "no longer wanted, replaced by the dataplane", have: []route{overDevice}},
		{name: "nobody's for now", have: []route{direct(ours, b)}, goal: goal{settling: map[netip.Prefix]bool{own: true}}},
		{name: "a peer's", have: []route{direct(ours, b)}, goal: goal{settling: map[netip.Prefix]bool{subnet: true}}, stale: []op{{remove, direct(ours, b)}}},
		{name: "in a peer's", have: []route{direct(ours, b)}, goal: goal{settling: map[netip.Prefix]bool{prefix("10.5.0.0/20"): true}}, stale: []op{{remove, direct(ours, b)}}},
		{name: "wider than a peer's", have: []route{direct(ours, b)}, goal: goal{settling: map[netip.Prefix]bool{prefix("10.5.2.0/25"): true}}},
		{name: "blackhole", goal: goal{blackholes: []netip.Prefix{own}}, want: []op{{add, black}}},
		{name: "blackhole there", have: []route{black}, goal: goal{blackholes: []netip.Prefix{own}}},
		{name: "blackhole of flannel", have: []route{flannels}, goal: goal{blackholes: []netip.Prefix{own}},
			want: []op{{add, black}}, stale: []op{{remove, flannels}}},
		{name: "blackhole no longer", have: []route{black, flannels}, stale: []op{{remove, flannels}, {remove, black}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ops := plan(tc.have, tc.goal)
			if diff := cmp.Diff(tc.want, ops, byValue); diff != "" {
				t.Errorf("operations: want (-), got (+):\n%s", diff)
			}
			if diff := cmp.Diff(tc.stale, stale(applied(tc.have, ops), tc.goal), byValue); diff != "" {
				t.Errorf("stale: want (-), got (+):\n%s", diff)
			}
		})
	}
}

// From any state to any goal the plan leads to what is wanted, removes nothing before the
// dataplane could replace it, and a second plan is empty.
func TestPlanLeadsFromAnyStateToAnyOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	subnet := func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24) }
	randomHop := func() hop { return hop{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + r.IntN(2))}), 1 + r.IntN(2)} }
	for range 2000 {
		var have []route
		g := goal{direct: map[netip.Prefix]hop{}}
		for i := range 6 {
			if r.IntN(2) == 0 {
				have = append(have, route{dst: subnet(i), owner: owner(r.IntN(3)), hop: randomHop()})
			}
			if r.IntN(3) == 0 {
				g.direct[subnet(i)] = randomHop()
			}
		}
		if r.IntN(4) == 0 {
			have = append(have, route{dst: prefix("10.5.0.0/16"), owner: device})
		}
		before := have
		have = applied(have, plan(have, g))
		if again := plan(have, g); len(again) != 0 {
			t.Fatalf("left to do: %v", again)
		}
		at := map[netip.Prefix]route{}
		for _, x := range have {
			if _, twice := at[x.dst]; twice {
				t.Fatalf("two routes to %s", x.dst)
			}
			at[x.dst] = x
			if x.owner == flannel {
				t.Fatalf("%v stays flannel's", x)
			}
		}
		for _, x := range before {
			if _, ok := at[x.dst]; !ok {
				t.Fatalf("the route to %s is gone before Prune", x.dst)
			}
		}
		for dst, h := range g.direct {
			if at[dst] != (route{dst: dst, hop: h}) {
				t.Fatalf("%s is %v, want %v", dst, at[dst], h)
			}
		}
		have = applied(have, stale(have, g))
		if more := append(plan(have, g), stale(have, g)...); len(more) != 0 {
			t.Fatalf("left to do after Prune: %v", more)
		}
		for _, x := range have {
			if x.owner == ours && g.direct[x.dst] != x.hop {
				t.Fatalf("%v stays", x)
			}
		}
	}
}
