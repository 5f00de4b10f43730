package kernel

import (
	"cmp"
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

// String implements fmt.Stringer.
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
	at    place     // the neighbour, or the gateway of a nexthop or new route
	mac   encap.MAC // of the neighbour
	fdb   fdbEntry
	key   routeKey
	route route  // to delete
	id    uint32 // of the nexthop to delete
}

// object names the kernel object that an op changes, whatever it does to it.
type object struct {
	class byte   // n, f, x, r
	id    uint32 // of a nexthop that a notification is about
	at    place
	fdb   fdbEntry
	key   routeKey
}

func (o op) object() object {
	switch o.kind {
	case addNeigh, moveNeigh, delNeigh:
		return object{class: 'n', at: o.at}
	case addFDB, delFDB:
		return object{class: 'f', fdb: o.fdb}
	case addNexthop, delNexthop:
		return object{class: 'x', at: o.at}
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
		mac, ok := have.neigh[t.at()]
		switch {
		case !ok:
			emit(op{kind: addNeigh, at: t.at(), mac: t.mac})
		case mac != t.mac:
			emit(op{kind: moveNeigh, at: t.at(), mac: t.mac})
		}
		if e := t.fdb(); !have.fdb[e] && !doneFDB[e] {
			doneFDB[e] = true
			emit(op{kind: addFDB, fdb: e})
		}
		if t.direct {
			continue
		}
		if _, ok := have.nexthops[t.at()]; !ok && nexthops {
			emit(op{kind: addNexthop, at: t.at()})
		}
		k := routeKey{dst: t.dst}
		switch r, ok := have.routes[k]; {
		case !ok:
			emit(op{kind: addRoute, key: k, at: t.at()})
		case !have.isWanted(r, t, nexthops):
			emit(op{kind: replaceRoute, key: k, at: t.at()})
		}
	}
	stages[numStages-1] = stale(have, d, nexthops)
	return slices.Concat(stages[:]...)
}

// isWanted reports whether r is the route that t needs.
func (s *state) isWanted(r route, t target, nexthops bool) bool {
	if r.protocol != rtnl.RouteProtocol || r.direct {
		return r.direct && t.yields
	}
	if nexthops {
		id, ok := s.nexthops[t.at()]
		return ok && r.nexthop == id
	}
	return r.link == t.link && r.nexthop == 0 && r.gateway == t.base() && r.onlink
}

// stale returns the deletions: all that have holds and d does not want.
func stale(have *state, d *desired, nexthops bool) []op {
	var ops []op
	for k, r := range have.routes {
		t, ok := d.at(k.dst.Addr())
		if wanted := ok && t.dst == k.dst && k.metric == 0 && !t.direct; !wanted && !r.direct {
			ops = append(ops, op{kind: delRoute, key: k, route: r})
		}
	}
	for a, id := range have.nexthops {
		if t, ok := d.at(a.addr); !ok || t.link != a.link || t.direct || !nexthops {
			ops = append(ops, op{kind: delNexthop, at: a, id: id})
		}
	}
	for id := range have.spare {
		ops = append(ops, op{kind: delNexthop, id: id})
	}
	for a := range have.neigh {
		if t, ok := d.at(a.addr); !ok || t.link != a.link {
			ops = append(ops, op{kind: delNeigh, at: a})
		}
	}
	for e := range have.fdb {
		if via, ok := d.fdb[remoteMAC{e.link, e.mac}]; !ok || via != e.dst {
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
		cmp.Compare(a.at.link, b.at.link), a.at.addr.Compare(b.at.addr), cmp.Compare(a.id, b.id),
		cmp.Compare(a.fdb.link, b.fdb.link), a.fdb.dst.Compare(b.fdb.dst), slices.Compare(a.fdb.mac[:], b.fdb.mac[:]))
}

// ready reports whether everything that the target's route needs is there.
func (s *state) ready(t target, nexthops bool) bool {
	_, ok := s.nexthops[t.at()]
	return s.neigh[t.at()] == t.mac && s.fdb[t.fdb()] && (ok || !nexthops || t.direct)
}

// complete reports whether the target is completely programmed.
func (s *state) complete(t target, nexthops bool) bool {
	r, ok := s.routes[routeKey{dst: t.dst}]
	if t.direct {
		return s.ready(t, nexthops)
	}
	return ok && s.ready(t, nexthops) && s.isWanted(r, t, nexthops)
}

// apply records that the kernel did o. id is that of a new nexthop or, for a route, of the
// nexthop that it goes through, else 0.
func (s *state) apply(o op, id uint32) {
	switch o.kind {
	case addNeigh, moveNeigh:
		s.neigh[o.at] = o.mac
	case delNeigh:
		delete(s.neigh, o.at)
	case addFDB:
		s.fdb[o.fdb] = true
	case delFDB:
		delete(s.fdb, o.fdb)
	case addNexthop:
		s.nexthops[o.at], s.gateways[id] = id, o.at
	case delNexthop:
		if o.at.addr.IsValid() {
			delete(s.nexthops, o.at)
		}
		delete(s.gateways, o.id)
		delete(s.spare, o.id)
	case addRoute, replaceRoute:
		s.routes[o.key] = ourRoute(o.at, id)
	case delRoute:
		delete(s.routes, o.key)
	}
}

// ourRoute is the route through a gateway, by a nexthop object unless nexthop is 0.
func ourRoute(gateway place, nexthop uint32) route {
	return route{link: gateway.link, protocol: rtnl.RouteProtocol, nexthop: nexthop, gateway: gateway.addr, onlink: true}
}
