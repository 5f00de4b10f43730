package kernel

import (
	"fmt"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
)

// Kinds of objects, as Status and the log of repairs name them.
const (
	kindDevice    = dataplane.KindDevice
	kindNeighbour = "neighbour"
	kindFDB       = "fdb"
	kindNexthop   = "nexthop"
	kindRoute     = "route"
)

// change returns what o does to the state have, for the log.
func (o op) change(have *state) dataplane.Change {
	c := dataplane.Change{Op: dataplane.OpAdd}
	switch {
	case o.kind.isDelete():
		c.Op = dataplane.OpDelete
	case o.kind == moveNeigh || o.kind == replaceRoute:
		c.Op = dataplane.OpReplace
	}
	was, is := "", ""
	switch o.kind {
	case addNeigh, moveNeigh, delNeigh:
		c.Kind, c.Key, is = kindNeighbour, o.at.addr.String(), o.mac.String()
		if mac, ok := have.neigh[o.at]; ok {
			was = mac.String()
		}
	case addFDB, delFDB:
		c.Kind, c.Key, is = kindFDB, o.fdb.mac.String(), o.fdb.dst.String()
		was = is
	case addNexthop, delNexthop:
		c.Kind, c.Key, is = kindNexthop, o.at.addr.String(), "dev "+fmt.Sprint(o.at.link)
		was = fmt.Sprintf("id %d", o.id)
	default:
		c.Kind, c.Key, is = kindRoute, o.key.dst.String(), "via "+o.at.addr.String()
		if r, ok := have.routes[o.key]; ok {
			was = r.String()
		}
	}
	if c.Op != dataplane.OpAdd {
		c.Was = was
	}
	if c.Op != dataplane.OpDelete {
		c.Is = is
	}
	return c
}

// String implements fmt.Stringer.
func (r route) String() string {
	s := fmt.Sprintf("dev %d proto %d", r.link, r.protocol)
	if r.gateway.IsValid() {
		s = "via " + r.gateway.String() + " " + s
	}
	if r.nexthop != 0 {
		s = fmt.Sprintf("nhid %d proto %d", r.nexthop, r.protocol)
	}
	return s
}

// mend is an operation that restores what others have changed.
type mend struct {
	about  object
	change dataplane.Change
}

// mended takes over as repairs the mends that the kernel has not refused, each once.
func (p *programmer) mended(errs map[object]error) {
	seen := make(map[object]bool, len(p.mends))
	for _, m := range p.mends {
		if !seen[m.about] && errs[m.about] == nil {
			p.repairs = append(p.repairs, m.change)
		}
		seen[m.about] = true
	}
}

// repairing returns those of ops that restore what the last sync left: this one may want something else by now, and
// has perhaps programmed a part of that. A direct route in the place of ours needs no repair.
func (p *programmer) repairing(ops []op) (out []mend) {
	type change struct {
		kind  kind
		about object
		id    uint32
	}
	restore := map[change]bool{}
	for _, o := range plan(p.have, p.left, p.nexthops) {
		restore[change{o.kind, o.object(), o.id}] = true
	}
	for _, o := range ops {
		if restore[change{o.kind, o.object(), o.id}] && !p.have.routes[o.key].direct {
			out = append(out, mend{o.object(), o.change(p.have)})
		}
	}
	return out
}

// withoutHeld returns the operations that need not wait. A repair of an object that somebody keeps undoing waits,
// and delays no other.
func (p *programmer) withoutHeld(ops []op) []op {
	if p.asked || !p.report.Fights() {
		return ops
	}
	return slices.DeleteFunc(ops, func(o op) bool {
		left, held := p.report.Held(o.change(p.have))
		if held && (p.held == 0 || left < p.held) {
			p.held = left
		}
		return held
	})
}

// objects counts what is wanted and there. It returns nil if that is not known.
func (p *programmer) objects(want *desired) []dataplane.ObjectStatus {
	if p.left == nil || want == nil {
		return nil
	}
	nexthops := func(d *desired) int {
		if !p.nexthops {
			return 0
		}
		return d.routed
	}
	return []dataplane.ObjectStatus{
		{Kind: kindDevice, Wanted: len(p.tunnels), Have: len(p.links)},
		{Kind: kindNeighbour, Wanted: len(want.targets), Have: len(p.left.targets)},
		{Kind: kindFDB, Wanted: len(want.fdb), Have: len(p.left.fdb)},
		{Kind: kindNexthop, Wanted: nexthops(want), Have: nexthops(p.left)},
		{Kind: kindRoute, Wanted: want.routed, Have: p.left.routed},
	}
}
