package hostroute

import (
	"cmp"
	"net/netip"
	"slices"
)

// owner is whose a route is.
type owner uint8

const (
	ours    owner = iota // this package's
	flannel              // such as flanneld leaves in the place of ours
	device               // of a dataplane, ours or flannel's: leads to an overlay device
)

// route is a route of the main table that concerns us.
type route struct {
	dst       netip.Prefix
	owner     owner
	hop       hop // of a direct route
	blackhole bool
	metric    int // of a blackhole; all others have the family's default
}

// verb is what an operation does with a route, in the order in which they are done.
type verb uint8

const (
	add     verb = iota
	replace      // what is there is ours to replace, atomically
	remove
)

func (v verb) String() string { return [...]string{"add", "replace", "delete"}[v] }

type op struct {
	verb  verb
	route route // to add or delete
}

// blackholeMetric makes a blackhole give way to every route that a container network
// makes for the subnet, such as a bridge's connected one (metric 0, in IPv6 256).
const blackholeMetric = 1 << 20

// goal is what is wanted.
type goal struct {
	direct     map[netip.Prefix]hop
	blackholes []netip.Prefix
	// encapsulated are the subnets that the dataplane is to reach. It replaces a
	// direct route to one, so that no packet is lost, where that is not overdue.
	encapsulated map[netip.Prefix]bool
	overdue      func(netip.Prefix) bool
}

// plan returns what to do so that have becomes what g wants, and the subnets whose
// route is left for the dataplane to replace.
func plan(have []route, g goal) (ops []op, left []netip.Prefix) {
	there := make(map[netip.Prefix]route, len(have))
	covers := coverage(have)
	for _, r := range have {
		switch {
		case r.blackhole:
			if r.owner != ours || r.metric != blackholeMetric || !slices.Contains(g.blackholes, r.dst) {
				ops = append(ops, op{remove, r})
			}
			continue
		case r.owner == ours && g.direct[r.dst] == r.hop, g.direct[r.dst] != hop{}:
			// there, or replaced below
		case r.owner == device:
		case g.encapsulated[r.dst] && !covers(r.dst) && !g.overdue(r.dst):
			if left = append(left, r.dst); r.owner == flannel { // so that the dataplane may replace it
				ops = append(ops, op{replace, route{dst: r.dst, hop: r.hop}})
			}
		default:
			ops = append(ops, op{remove, r})
		}
		there[r.dst] = r
	}
	for dst, h := range g.direct {
		r, ok := there[dst]
		switch wanted := (route{dst: dst, hop: h}); {
		case !ok:
			ops = append(ops, op{add, wanted})
		case r != wanted:
			ops = append(ops, op{replace, wanted})
		}
	}
	for _, dst := range g.blackholes {
		if want := (route{dst: dst, blackhole: true, metric: blackholeMetric}); !slices.Contains(have, want) {
			ops = append(ops, op{add, want})
		}
	}
	slices.SortFunc(ops, compareOps)
	slices.SortFunc(left, netip.Prefix.Compare)
	return ops, left
}

// coverage returns a function that reports whether a route to an overlay device leads
// to a wider prefix than this, as that of the userspace dataplane does.
func coverage(have []route) func(netip.Prefix) bool {
	var wide []netip.Prefix
	lengths := map[int]bool{}
	for _, r := range have {
		if r.owner == device {
			wide = append(wide, r.dst)
			lengths[r.dst.Bits()] = true
		}
	}
	set := make(map[netip.Prefix]bool, len(wide))
	for _, p := range wide {
		set[p] = true
	}
	return func(p netip.Prefix) bool {
		for bits := range lengths {
			if wider, err := p.Addr().Prefix(bits); err == nil && bits < p.Bits() && set[wider] {
				return true
			}
		}
		return false
	}
}

// applied returns what is there after ops were done.
func applied(have []route, ops []op) []route {
	gone, changed := map[route]bool{}, map[netip.Prefix]bool{}
	var added []route
	for _, o := range ops {
		switch {
		case o.verb == remove:
			gone[o.route] = true
			continue
		case !o.route.blackhole:
			changed[o.route.dst] = true
		}
		added = append(added, o.route)
	}
	var out []route
	for _, r := range have {
		if !gone[r] && (r.blackhole || !changed[r.dst]) {
			out = append(out, r)
		}
	}
	return append(out, added...)
}

func compareOps(a, b op) int {
	return cmp.Or(cmp.Compare(a.verb, b.verb), a.route.dst.Compare(b.route.dst), cmp.Compare(a.route.metric, b.route.metric))
}
