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

// route is a route of the main table inside the overlay networks.
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
	replace      // atomically, a route that we may replace
	remove
)

// String implements fmt.Stringer.
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
	refused    map[netip.Prefix]bool // no route of flannel's to one of them becomes ours
	settling   map[netip.Prefix]bool // the subnets of all: a direct route to what none of them holds stays for now; nil: it does not
}

// plan returns the additions and replacements that g needs. An unwanted direct route of
// flannel becomes ours, which the dataplane may replace by its own, unless the kernel has refused that.
func plan(have []route, g goal) (ops []op) {
	there := make(map[netip.Prefix]route, len(g.direct))
	for _, r := range have {
		switch {
		case r.blackhole:
			continue
		case r.owner == flannel && g.direct[r.dst] == hop{} && !g.refused[r.dst]:
			ops = append(ops, op{replace, route{dst: r.dst, hop: r.hop}})
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
	return ops
}

// isNobodys reports whether a direct route to dst stays for now, because that is in nobody's subnet.
func (g *goal) isNobodys(dst netip.Prefix) bool {
	if g.settling == nil {
		return false
	}
	for bits := range dst.Bits() + 1 {
		if g.settling[netip.PrefixFrom(dst.Addr(), bits).Masked()] {
			return false
		}
	}
	return true
}

// stale returns the removals that g needs.
func stale(have []route, g goal) (ops []op) {
	for _, r := range have {
		wanted := g.direct[r.dst] != hop{} || r.owner == device || g.isNobodys(r.dst)
		if r.blackhole {
			wanted = r.owner == ours && r.metric == blackholeMetric && slices.Contains(g.blackholes, r.dst)
		}
		if !wanted {
			ops = append(ops, op{remove, r})
		}
	}
	slices.SortFunc(ops, compareOps)
	return ops
}

// applied returns the routes after ops were done.
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
