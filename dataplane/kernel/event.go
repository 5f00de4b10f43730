package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// event is a notification that may mean that somebody changed what is ours.
type event struct {
	kind  eventKind
	index int       // of the device; 0 means any
	n     neighbour // of a neighbour or FDB event
	gone  bool      // it was removed
	key   routeKey  // of a route event
}

type eventKind uint8

const (
	noEvent    eventKind = iota
	lookEvent            // the device or its addresses: compare those
	dumpEvent            // read the kernel's whole state again
	neighEvent           // compare with the remembered neighbours
	fdbEvent             // compare with the remembered FDB entries
	routeEvent           // somebody replaced a route: compare with the remembered routes
)

// classify says what a notification means for the device of that index. What
// this process caused itself through the socket of that port is no event; the
// kernel does not name the cause for FDB entries, so that these are compared with what is remembered.
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
		n, ok := parseNeighbour(body)
		if !ok || n.index != index || own {
			return event{}
		}
		e := event{kind: neighEvent, index: index, n: n, gone: h.Type == unix.RTM_DELNEIGH}
		if n.family == unix.AF_BRIDGE {
			e.kind = fdbEvent
		}
		return e
	case unix.RTM_DELNEXTHOP:
		if len(body) >= unix.SizeofNhmsg && body[2] == rtnl.RouteProtocol && !own {
			return event{kind: dumpEvent}
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if !own {
			return classifyRoute(h, body, index)
		}
	}
	return event{}
}

// classifyRoute finds changes of routes on the device or of our protocol. A
// route of ours that somebody replaces shows only as theirs, of any protocol and device.
func classifyRoute(h unix.NlMsghdr, body []byte, index int) event {
	k, r, oif, ok := parseRoute(body)
	switch {
	case !ok:
		return event{}
	case r.protocol == rtnl.RouteProtocol || oif == index:
		return event{kind: dumpEvent}
	case h.Flags&unix.NLM_F_REPLACE != 0:
		return event{kind: routeEvent, key: k}
	}
	return event{}
}

func classifyLink(body []byte, index int) event {
	if len(body) < unix.SizeofIfInfomsg || native.Uint32(body[4:]) != uint32(index) {
		return event{}
	}
	if native.Uint32(body[8:])&unix.IFF_UP == 0 {
		return event{kind: dumpEvent, index: index} // a device set down loses routes and nexthops without a word
	}
	return event{kind: lookEvent, index: index}
}

// differs reports whether an event contradicts what is remembered.
func (e event) differs(have *state) bool {
	switch e.kind {
	case neighEvent:
		mac, ok := have.neigh[e.n.dst]
		if e.gone {
			return ok
		}
		return ok != e.n.permanent || ok && mac != e.n.mac
	case fdbEvent:
		_, ok := have.fdb[fdbEntry{e.n.mac, e.n.dst}]
		if e.gone {
			return ok
		}
		return !ok && e.n.mac.IsUnicast() && e.n.permanent
	}
	if e.kind == routeEvent {
		_, ok := have.routes[e.key]
		return ok
	}
	return e.kind != noEvent
}
