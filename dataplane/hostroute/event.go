package hostroute

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// scope selects the notifications that may concern our routes.
type scope struct {
	direct   bool // direct routes are wanted: it matters how VTEPs are reached
	mixed    bool // the overlay networks hold addresses of the underlay too
	networks []netip.Prefix
	subnets  map[netip.Prefix]bool // own and of every peer
	links    map[int]bool          // that peers are on, and others' routes to their subnets
	taken    bool                  // there are such routes
}

// newScope returns the scope of the routes for w that c asks for.
func newScope(w dataplane.Wanted, c Config, links map[int]bool) *scope {
	if c.idle() {
		return &scope{}
	}
	s := &scope{direct: c.Direct, mixed: len(w.Underlay) > 0, networks: w.Networks, subnets: map[netip.Prefix]bool{}, links: links}
	for _, own := range w.Subnets {
		s.subnets[own] = true
	}
	for _, p := range w.Peers {
		for _, subnet := range p.Subnets {
			s.subnets[subnet] = true
		}
	}
	return s
}

// await has the scope notice when others' routes to subnets of peers go. The kernel does not tell of those
// that go with their link or their nexthop object. taken has the links of each.
func (s *scope) await(taken map[netip.Prefix][]int) {
	for dst, links := range taken {
		if !s.direct || !s.subnets[dst] {
			continue
		}
		s.taken = true
		for _, l := range links {
			s.links[l] = true
		}
	}
}

// concerns reports whether a notification may change a decision or a route of ours.
// Notifications of addresses are not needed: each address has a route in the local table.
func (s *scope) concerns(typ, flags uint16, body []byte) bool {
	switch typ {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return s.direct
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return len(body) >= unix.SizeofIfInfomsg && s.links[int(nl.DeserializeIfInfomsg(body).Index)]
	case unix.RTM_DELNEXTHOP:
		return s.taken
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return s.concernsRoute(flags, body)
	}
	return false
}

var ( // IPv6 has such routes on each link; they lead to no peer
	linkLocal6 = netip.MustParsePrefix("fe80::/10")
	multicast6 = netip.MustParsePrefix("ff00::/8")
)

func (s *scope) concernsRoute(flags uint16, body []byte) bool {
	r, ok := rtnl.ParseRoute(body)
	dst := rtnl.Prefix(r.Dst)
	switch {
	case !ok || linkLocal6.Contains(dst.Addr()) || multicast6.Contains(dst.Addr()):
		return false
	case !rtnl.Inside(dst, s.networks) || s.mixed && !s.subnets[dst]: // it may lead to a VTEP, unless it is another overlay's
		return s.direct && r.Protocol != rtnl.RouteProtocol
	case r.Table != unix.RT_TABLE_MAIN || !s.subnets[dst]:
		return false
	case r.Protocol == rtnl.RouteProtocol && !rtnl.IsHostRoute(r): // a dataplane's: it may have replaced ours
		return flags&unix.NLM_F_REPLACE != 0
	}
	return true
}
