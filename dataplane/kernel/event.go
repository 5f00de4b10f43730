package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// event is a notification that may mean that somebody changed what is ours.
type event struct {
	kind  eventKind
	index int       // of the device; 0 means any
	about object    // the zero object if it is not about a single one
	n     neighbour // of a neighbour or FDB event
	nh    nexthop   // of a nexthop event
	gone  bool      // it was removed
	seen  bool      // it was looked at before
}

type eventKind uint8

const (
	noEvent      eventKind = iota // nothing; it only makes an earlier event about the same object obsolete
	lookEvent                     // the device or its addresses: compare those
	dumpEvent                     // read the kernel's whole state again; about a route: if that leads into the overlay
	neighEvent                    // compare with the remembered neighbours
	fdbEvent                      // compare with the remembered FDB entries
	nexthopEvent                  // compare with the remembered nexthops
	routeEvent                    // somebody replaced a route: compare with the remembered routes
	freeEvent                     // a route of somebody else has gone: ours may have been refused because of it
)

// subject is what events are about. Of two events about the same only the later counts.
type subject struct {
	kind  eventKind
	index int
	gone  bool
	about object
}

func (e event) subject() subject {
	switch e.about.class {
	case 'n', 'f': // entries tell their whole content: what was before does not matter
		return subject{index: e.index, about: e.about}
	}
	return subject{e.kind, e.index, e.gone, e.about}
}

// classify returns what a notification means for the device of that index. Changes that this
// process made through the socket of that port are ignored. For FDB entries and the end of a
// neighbour the kernel does not name the cause: these are compared with the remembered state.
func classify(h unix.NlMsghdr, body []byte, index int, port uint32) event {
	own := h.Pid == port
	switch h.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return classifyLink(body, index)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(body) >= unix.SizeofIfAddrmsg && native.Uint32(body[4:]) == uint32(index) {
			return event{kind: lookEvent, index: index}
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return classifyNeighbour(h, body, index, own)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		if n, ok := parseNexthop(body); ok && !own {
			return event{kind: nexthopEvent, about: object{class: 'x', id: n.id}, nh: n, gone: h.Type == unix.RTM_DELNEXTHOP}
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if !own {
			return classifyRoute(h, body, index)
		}
	}
	return event{}
}

func classifyNeighbour(h unix.NlMsghdr, body []byte, index int, own bool) event {
	n, ok := parseNeighbour(body)
	if !ok || n.index != index {
		return event{}
	}
	e := event{kind: neighEvent, index: index, about: object{class: 'n', at: n.place()}, n: n, gone: h.Type == unix.RTM_DELNEIGH}
	if n.family == unix.AF_BRIDGE {
		e.kind, e.about = fdbEvent, object{class: 'f', fdb: n.fdb()}
	}
	if own {
		e.kind = noEvent
	}
	return e
}

// classifyRoute finds changes of routes on the device or of our protocol. A
// route of ours that somebody replaces shows only as theirs, of any protocol and device.
func classifyRoute(h unix.NlMsghdr, body []byte, index int) event {
	k, r, ok := parseRoute(body)
	about := object{class: 'r', key: k}
	switch {
	case !ok:
		return event{}
	case r.link == index:
		return event{kind: dumpEvent}
	case r.direct: // dataplane/hostroute put it in the place of ours, or took it away
		return event{kind: routeEvent, about: about, gone: h.Type == unix.RTM_DELROUTE}
	case r.protocol == rtnl.RouteProtocol: // perhaps of another daemon, with another overlay
		return event{kind: dumpEvent, about: about}
	case h.Type == unix.RTM_DELROUTE:
		return event{kind: freeEvent, about: about}
	case h.Flags&unix.NLM_F_REPLACE != 0:
		return event{kind: routeEvent, about: about}
	}
	return event{}
}

func classifyLink(body []byte, index int) event {
	if len(body) < unix.SizeofIfInfomsg || native.Uint32(body[4:]) != uint32(index) {
		return event{}
	}
	if flags := native.Uint32(body[8:]); flags&unix.IFF_UP == 0 || flags&unix.IFF_LOWER_UP == 0 {
		return event{kind: dumpEvent, index: index} // a device set down, or without carrier, loses routes or nexthops without notification
	}
	return event{kind: lookEvent, index: index}
}

// differs reports whether an event contradicts what is remembered.
func (e event) differs(have *state) bool {
	switch e.kind {
	case neighEvent:
		mac, ok := have.neigh[e.n.place()]
		if e.gone {
			return ok
		}
		return ok != e.n.permanent() || ok && mac != e.n.mac
	case fdbEvent:
		_, ok := have.fdb[e.n.fdb()]
		if e.gone {
			return ok
		}
		return !ok && e.n.mac.IsUnicast() && e.n.permanent()
	case nexthopEvent:
		gateway, ok := have.gateways[e.nh.id]
		if e.gone || ok {
			return ok && (e.gone || !have.isUseful(e.nh) || e.nh.place() != gateway)
		}
		return have.isOurs(e.nh) && !have.spare[e.nh.id]
	case routeEvent:
		r, ok := have.routes[e.about.key]
		return ok && (e.gone || !r.direct)
	case dumpEvent:
		return e.about.class == 0 || rtnl.Inside(e.about.key.dst, have.networks)
	}
	return e.kind != noEvent
}

// mayBeOwn reports whether this process itself may have caused an event that differs: the kernel
// does not tell, and a later event that explains it may be under way. Such an event counts only
// if no other about the same object has followed a while later.
func (e event) mayBeOwn() bool {
	return !e.seen && (e.kind == neighEvent || e.kind == fdbEvent)
}
