package kernel

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// kind is what an operation does. The kinds are in the order in which they are
// applied: a route comes last and goes first, so that no packet meets a route
// whose neighbour or forwarding entry is missing; and a neighbour changes its
// MAC only when the new one can be forwarded, and before the old one no longer can.
type kind uint8

const (
	addNeigh kind = iota
	addFDB
	addNexthop
	moveNeigh // change the MAC of a neighbour in place
	addRoute
	replaceRoute // in place, which the kernel does atomically
	delRoute
	delNexthop
	delNeigh
	delFDB
)

func (k kind) String() string {
	return [...]string{"add neighbour", "add FDB entry", "add nexthop", "change neighbour", "add route",
		"replace route", "delete route", "delete nexthop", "delete neighbour", "delete FDB entry"}[k]
}

func (k kind) isDelete() bool { return k >= delRoute }

const numStages = 4

// stage groups the kinds that may be applied in one go: a later stage needs to
// know what became of an earlier one.
func (k kind) stage() int {
	switch {
	case k <= addNexthop:
		return 0
	case k == moveNeigh:
		return 1
	case k <= replaceRoute:
		return 2
	}
	return numStages - 1
}

// op is one change of one kernel object. Which fields matter depends on the kind.
type op struct {
	kind  kind
	base  netip.Addr // of the neighbour or the nexthop's gateway
	mac   encap.MAC  // of the neighbour
	fdb   fdbEntry
	key   routeKey
	route route  // to delete
	id    uint32 // of the nexthop to delete
}

// object names the kernel object that an op changes, whatever it does to it.
type object struct {
	class byte   // n, f, x, r
	id    uint32 // of a nexthop that a notification is about
	base  netip.Addr
	fdb   fdbEntry
	key   routeKey
}

func (o op) object() object {
	switch o.kind {
	case addNeigh, moveNeigh, delNeigh:
		return object{class: 'n', base: o.base}
	case addFDB, delFDB:
		return object{class: 'f', fdb: o.fdb}
	case addNexthop, delNexthop:
		return object{class: 'x', base: o.base}
	}
	return object{class: 'r', key: o.key}
}

// plan returns what to do, in order, so that have becomes what d wants. Without
// nexthops (kernels before 5.3), routes go straight through the gateway.
func plan(have *state, d *desired, nexthops bool) []op {
	var stages [numStages][]op
	emit := func(o op) { stages[o.kind.stage()] = append(stages[o.kind.stage()], o) }
	doneFDB := map[fdbEntry]bool{} // new entries that an earlier target of the same peer asked for
	for _, t := range d.targets {
		mac, ok := have.neigh[t.base()]
		switch {
		case !ok:
			emit(op{kind: addNeigh, base: t.base(), mac: t.mac})
		case mac != t.mac:
			emit(op{kind: moveNeigh, base: t.base(), mac: t.mac})
		}
		if e := t.fdb(); !have.fdb[e] && !doneFDB[e] {
			doneFDB[e] = true
			emit(op{kind: addFDB, fdb: e})
		}
		if _, ok := have.nexthops[t.base()]; !ok && nexthops {
			emit(op{kind: addNexthop, base: t.base()})
		}
		k := routeKey{dst: t.dst}
		switch r, ok := have.routes[k]; {
		case !ok:
			emit(op{kind: addRoute, key: k})
		case !have.isWanted(r, t, nexthops):
			emit(op{kind: replaceRoute, key: k})
		}
	}
	stages[numStages-1] = stale(have, d, nexthops)
	return slices.Concat(stages[:]...)
}

// isWanted reports whether r is the route that t needs.
func (s *state) isWanted(r route, t target, nexthops bool) bool {
	if r.protocol != rtnl.RouteProtocol {
		return false
	}
	if nexthops {
		id, ok := s.nexthops[t.base()]
		return ok && r.nexthop == id
	}
	return r.link == 0 && r.nexthop == 0 && r.gateway == t.base() && r.onlink
}

// stale returns the deletions: all that have holds and d does not want.
func stale(have *state, d *desired, nexthops bool) []op {
	var ops []op
	for k, r := range have.routes {
		if i, ok := d.byBase[k.dst.Addr()]; !ok || d.targets[i].dst != k.dst || k.metric != 0 {
			ops = append(ops, op{kind: delRoute, key: k, route: r})
		}
	}
	for a, id := range have.nexthops {
		if _, ok := d.byBase[a]; !ok || !nexthops {
			ops = append(ops, op{kind: delNexthop, base: a, id: id})
		}
	}
	for id := range have.spare {
		ops = append(ops, op{kind: delNexthop, id: id})
	}
	for a := range have.neigh {
		if _, ok := d.byBase[a]; !ok {
			ops = append(ops, op{kind: delNeigh, base: a})
		}
	}
	for e := range have.fdb {
		if via, ok := d.fdb[e.mac]; !ok || via != e.dst {
			ops = append(ops, op{kind: delFDB, fdb: e})
		}
	}
	slices.SortFunc(ops, compareOps)
	return ops
}

// compareOps makes the order of deletions, which come from maps, the same every time.
func compareOps(a, b op) int {
	return cmp.Or(
		cmp.Compare(a.kind, b.kind),
		a.key.dst.Compare(b.key.dst), cmp.Compare(a.key.metric, b.key.metric),
		a.base.Compare(b.base), cmp.Compare(a.id, b.id),
		a.fdb.dst.Compare(b.fdb.dst), slices.Compare(a.fdb.mac[:], b.fdb.mac[:]))
}

// ready reports whether all that the target's route leads to is there.
func (s *state) ready(t target, nexthops bool) bool {
	_, ok := s.nexthops[t.base()]
	return s.neigh[t.base()] == t.mac && s.fdb[t.fdb()] && (ok || !nexthops)
}

// complete reports whether the target is programmed.
func (s *state) complete(t target, nexthops bool) bool {
	r, ok := s.routes[routeKey{dst: t.dst}]
	return ok && s.ready(t, nexthops) && s.isWanted(r, t, nexthops)
}

// apply notes that the kernel did o. id is that of a new nexthop or, for a
// route, of the one that it goes through, else 0.
func (s *state) apply(o op, id uint32) {
	switch o.kind {
	case addNeigh, moveNeigh:
		s.neigh[o.base] = o.mac
	case delNeigh:
		delete(s.neigh, o.base)
	case addFDB:
		s.fdb[o.fdb] = true
	case delFDB:
		delete(s.fdb, o.fdb)
	case addNexthop:
		s.nexthops[o.base], s.gateways[id] = id, o.base
	case delNexthop:
		if o.base.IsValid() {
			delete(s.nexthops, o.base)
		}
		delete(s.gateways, o.id)
		delete(s.spare, o.id)
	case addRoute, replaceRoute:
		s.routes[o.key] = ourRoute(o.key.dst.Addr(), id)
	case delRoute:
		delete(s.routes, o.key)
	}
}

func ourRoute(base netip.Addr, nexthop uint32) route {
	return route{protocol: rtnl.RouteProtocol, nexthop: nexthop, gateway: base, onlink: true}
}
