package kernel

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// The kernel does not say that our own changes of FDB entries, and the end of a
// neighbour, are ours.
func TestOwnChangesAreNoReasonToLook(t *testing.T) {
	const index, port = 7, 4711
	entry, base := fdbEntry{index, peerB.MAC, peerB.Addr}, place{index, peerB.Subnets[0].Addr()}
	message := func(typ uint16, pid uint32, b []byte) event {
		return classify(unix.NlMsghdr{Type: typ, Pid: pid}, b[unix.SizeofNlMsghdr:], index, port)
	}
	addFDB := message(unix.RTM_NEWNEIGH, 0, fdbMessage(nil, unix.RTM_NEWNEIGH, 0, entry))
	delFDB := message(unix.RTM_DELNEIGH, 0, fdbMessage(nil, unix.RTM_DELNEIGH, 0, entry))
	addNeigh := message(unix.RTM_NEWNEIGH, port, neighMessage(nil, unix.RTM_NEWNEIGH, 0, base, peerB.MAC))
	delNeigh := message(unix.RTM_DELNEIGH, 0, neighMessage(nil, unix.RTM_DELNEIGH, 0, base, peerB.MAC))
	for _, tc := range []struct {
		name         string
		there        bool // the entries, by what is remembered
		first, later []event
		want         bool
	}{
		{"added", true, []event{addFDB, addNeigh}, nil, false},
		{"deleted", false, []event{delFDB, delNeigh}, nil, false},
		{"deleted and added", true, []event{delFDB, delNeigh, addFDB, addNeigh}, nil, false},
		{"added and deleted", false, []event{addFDB, addNeigh, delFDB, delNeigh}, nil, false},
		{"FDB entry added later", true, []event{delFDB}, []event{addFDB}, false},
		{"FDB entry deleted later", false, []event{addFDB}, []event{delFDB}, false},
		{"neighbour added later", true, []event{delNeigh}, []event{addNeigh}, false},
		{"FDB entry deleted by somebody", true, []event{addFDB, delFDB}, nil, true},
		{"FDB entry added by somebody", false, []event{addFDB}, nil, true},
		{"neighbour deleted by somebody", true, []event{addNeigh, delNeigh}, nil, true},
	} {
		p, in := &programmer{links: []int{index}, have: newState()}, newInbox()
		if tc.there {
			p.have.fdb[entry], p.have.neigh[base] = true, peerB.MAC
		}
		reason := false
		for _, events := range [][]event{tc.first, tc.later, nil} {
			for _, e := range events {
				in.put(e)
			}
			r, again := p.look(in.take())
			reason = reason || r
			in.putBack(again)
		}
		if reason != tc.want || reason != (p.have == nil) {
			t.Errorf("%s: reason to look %v, want %v", tc.name, reason, tc.want)
		}
	}
}

func TestInboxKeepsNoMoreThanItMay(t *testing.T) {
	in := newInbox()
	for i := range maxEvents + 1 {
		in.put(event{kind: routeEvent, about: object{class: 'r', key: routeKey{metric: uint32(i)}}})
	}
	if events := in.take(); len(events) != 1 || events[0].kind != dumpEvent {
		t.Errorf("%d events", len(events))
	}
}

func TestOnlyWhatIsOursIsAReasonToLook(t *testing.T) {
	const index, other, port = 7, 8, 4711
	have := newState()
	have.links, have.networks = []int{index}, prefixes("10.5.0.0/16")
	base := netip.MustParseAddr("10.5.2.0")
	have.nexthops[place{index, base}], have.gateways[3] = 3, place{index, base}
	routeOf := func(dst string, protocol uint8, link int) []byte {
		k := routeKey{dst: netip.MustParsePrefix(dst)}
		return routeMessage(nil, unix.RTM_NEWROUTE, 0, k, route{link: link, protocol: protocol, gateway: base})
	}
	nexthopOf := func(id uint32, gateway string, protocol uint8, link int) []byte {
		b := newNexthopMessage(nil, place{link, netip.MustParseAddr(gateway)})
		b[unix.SizeofNlMsghdr+2] = protocol
		return rtmsg.AttrUint32(b, unix.NHA_ID, id)
	}
	// dataplane/hostroute's: in the place of ours, or where a dump found it.
	direct := func(dst string) []byte {
		r := route{link: other, protocol: rtnl.RouteProtocol, gateway: peerB.Addr}
		return routeMessage(nil, unix.RTM_NEWROUTE, 0, routeKey{dst: netip.MustParsePrefix(dst)}, r)
	}
	have.routes[routeKey{dst: netip.MustParsePrefix("10.5.2.0/24")}] = ourRoute(place{index, base}, 3)
	have.routes[routeKey{dst: netip.MustParsePrefix("10.5.3.0/24")}] = route{direct: true}
	for _, tc := range []struct {
		typ  uint16
		b    []byte
		want bool
	}{
		{unix.RTM_NEWROUTE, routeOf("10.5.2.0/24", rtnl.RouteProtocol, other), true},
		{unix.RTM_DELROUTE, routeOf("10.5.2.0/24", rtnl.RouteProtocol, other), true},
		{unix.RTM_NEWROUTE, routeOf("10.6.2.0/24", rtnl.RouteProtocol, index), true},
		{unix.RTM_NEWROUTE, routeOf("10.6.2.0/24", rtnl.RouteProtocol, other), false}, // another daemon's
		{unix.RTM_NEWROUTE, routeOf("10.0.0.0/8", rtnl.RouteProtocol, other), false},
		{unix.RTM_NEWROUTE, routeOf("10.5.2.0/24", unix.RTPROT_STATIC, other), false},
		{unix.RTM_NEWROUTE, direct("10.5.2.0/24"), true},
		{unix.RTM_NEWROUTE, direct("10.5.3.0/24"), false},
		{unix.RTM_DELROUTE, direct("10.5.3.0/24"), true},
		{unix.RTM_NEWROUTE, direct("10.5.4.0/24"), false},
		{unix.RTM_DELROUTE, direct("10.5.4.0/24"), false},
		{unix.RTM_NEWNEXTHOP, nexthopOf(3, "10.5.2.0", rtnl.RouteProtocol, index), false}, // as it is
		{unix.RTM_NEWNEXTHOP, nexthopOf(3, "10.5.3.0", rtnl.RouteProtocol, index), true},
		{unix.RTM_NEWNEXTHOP, nexthopOf(3, "10.5.2.0", rtnl.RouteProtocol, other), true},
		{unix.RTM_NEWNEXTHOP, nexthopOf(3, "10.5.2.0", unix.RTPROT_STATIC, index), true},
		{unix.RTM_NEWNEXTHOP, nexthopOf(4, "10.5.3.0", rtnl.RouteProtocol, other), true},
		{unix.RTM_NEWNEXTHOP, nexthopOf(4, "10.6.3.0", rtnl.RouteProtocol, other), false}, // another daemon's
		{unix.RTM_NEWNEXTHOP, nexthopOf(4, "10.5.3.0", unix.RTPROT_STATIC, other), false},
		{unix.RTM_DELNEXTHOP, nexthopOf(3, "10.5.2.0", rtnl.RouteProtocol, index), true},
		{unix.RTM_DELNEXTHOP, nexthopOf(4, "10.6.3.0", rtnl.RouteProtocol, other), false},
	} {
		e := classify(unix.NlMsghdr{Type: tc.typ, Pid: 1}, tc.b[unix.SizeofNlMsghdr:], index, port)
		if got := e.differs(have); got != tc.want {
			t.Errorf("%s: got %v, want %v", fmt.Sprintf("message of type %d, %+v", tc.typ, e), got, tc.want)
		}
	}
}

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}
