package kernel

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// place is an overlay address on one of the devices.
type place struct {
	link int // index of the device
	addr netip.Addr
}

// fdbEntry is one forwarding entry of a vxlan device: frames to the MAC go to
// the underlay address.
type fdbEntry struct {
	link int
	mac  encap.MAC
	dst  netip.Addr
}

// routeKey identifies a route of the main table among those that are ours.
// metric is 0 for the family's default.
type routeKey struct {
	dst    netip.Prefix
	metric uint32
}

// route goes through a nexthop object or, if nexthop is 0, through a gateway.
type route struct {
	link     int // index of the device, or noLink; 0 if the kernel tells only a nexthop
	protocol uint8
	nexthop  uint32 // id
	gateway  netip.Addr
	onlink   bool
	direct   bool // a direct route, which dataplane/hostroute keeps: ours to replace, not to delete
}

// noLink is the link of a route that leads nowhere (blackhole and the like).
const noLink = -1

// state is our part of the kernel's state: objects on the overlay devices, and routes and
// nexthops of our protocol into the overlay networks. It is read once, and then changed by
// every request that succeeds.
type state struct {
	links    []int               // indices of the overlay devices
	networks []netip.Prefix      // the overlay networks
	neigh    map[place]encap.MAC // permanent neighbours
	fdb      map[fdbEntry]bool   // unicast forwarding entries
	nexthops map[place]uint32    // gateway → id of our nexthop object
	gateways map[uint32]place    // the reverse
	spare    map[uint32]bool     // our nexthop objects that cannot be used: doubled, malformed or elsewhere
	routes   map[routeKey]route  // of our protocol, or of flannel's shape
}

func newState() *state {
	return &state{
		neigh:    map[place]encap.MAC{},
		fdb:      map[fdbEntry]bool{},
		nexthops: map[place]uint32{},
		gateways: map[uint32]place{},
		spare:    map[uint32]bool{},
		routes:   map[routeKey]route{},
	}
}

// neighbour is an entry of the neighbour table or of a forwarding table.
type neighbour struct {
	index  int
	family uint8
	state  uint16 // NUD_…
	plain  bool   // no other port, VNI or interface than the device's own
	mac    encap.MAC
	dst    netip.Addr
}

func parseNeighbour(body []byte) (n neighbour, ok bool) {
	h, rest := rtmsg.Split(body, unix.SizeofNdMsg)
	if h == nil {
		return n, false
	}
	n.index, n.family, n.state, n.plain = int(native.Uint32(h[4:])), h[0], native.Uint16(h[8:]), true
	for typ, v := range rtmsg.Attrs(rest) {
		switch typ {
		case unix.NDA_DST:
			a, _ := netip.AddrFromSlice(v)
			n.dst = a
		case unix.NDA_LLADDR:
			if len(v) == encap.MACLen {
				n.mac = encap.MAC(v)
			}
		case unix.NDA_PORT, unix.NDA_VNI, unix.NDA_IFINDEX, unix.NDA_SRC_VNI:
			n.plain = false
		}
	}
	return n, n.dst.IsValid()
}

// addNeighbour takes a neighbour entry of a device.
func (s *state) addNeighbour(n neighbour) {
	if n.permanent() {
		s.neigh[n.place()] = n.mac
	}
}

func (n neighbour) permanent() bool { return n.state&unix.NUD_PERMANENT != 0 }

func (n neighbour) place() place { return place{n.index, n.dst} }

func (n neighbour) fdb() fdbEntry { return fdbEntry{n.index, n.mac, n.dst} }

// addFDB takes a forwarding entry of a device. The default entry, of the zero MAC, is ignored,
// and so are entries that a learning device has learnt. An entry with its own port, VNI or
// interface is left out, so that a wanted one replaces it.
func (s *state) addFDB(n neighbour, learning bool) {
	if n.mac.IsUnicast() && n.plain && (n.permanent() || !learning) {
		s.fdb[n.fdb()] = n.permanent()
	}
}

// nexthop is a nexthop object.
type nexthop struct {
	id       uint32
	link     int
	protocol uint8
	onlink   bool
	gateway  netip.Addr
}

func parseNexthop(body []byte) (n nexthop, ok bool) {
	h, rest := rtmsg.Split(body, unix.SizeofNhmsg)
	if h == nil {
		return n, false
	}
	n.protocol, n.onlink = h[2], native.Uint32(h[4:])&unix.RTNH_F_ONLINK != 0
	for typ, v := range rtmsg.Attrs(rest) {
		switch typ {
		case unix.NHA_ID:
			n.id = rtmsg.Uint32(v)
		case unix.NHA_OIF:
			n.link = int(rtmsg.Uint32(v))
		case unix.NHA_GATEWAY:
			n.gateway, _ = netip.AddrFromSlice(v)
		}
	}
	return n, n.id != 0
}

func (n nexthop) place() place { return place{n.link, n.gateway} }

// isOurs reports whether n is of our protocol and on one of our devices or on none,
// or leads into the overlay on another one.
func (s *state) isOurs(n nexthop) bool {
	return n.protocol == rtnl.RouteProtocol && (s.owns(n.link) || n.link == 0 || s.holds(n.gateway))
}

// owns reports whether an index is that of one of the overlay devices.
func (s *state) owns(link int) bool { return slices.Contains(s.links, link) }

// isUseful reports whether our routes may go through n.
func (s *state) isUseful(n nexthop) bool {
	return n.protocol == rtnl.RouteProtocol && s.owns(n.link) && n.gateway.IsValid() && n.onlink
}

// addNexthop takes a nexthop object if it is ours.
func (s *state) addNexthop(n nexthop) {
	first, doubled := s.nexthops[n.place()]
	switch {
	case !s.isOurs(n):
	case doubled && first == n.id: // a kernel without IPv6 answers its dump with all nexthops
	case doubled || !s.isUseful(n):
		s.spare[n.id] = true
	default:
		s.nexthops[n.place()], s.gateways[n.id] = n.id, n.place()
	}
}

// addRoute takes a route of the main table if it is ours, or has flannel's shape: on our device,
// protocol boot, through the subnet's base address, on link. Every other route belongs to
// others.
func (s *state) addRoute(body []byte) {
	k, r, ok := parseRoute(body)
	if !ok {
		return
	}
	here := s.owns(r.link)
	flannel := here && r.protocol == unix.RTPROT_BOOT && r.gateway == k.dst.Addr() && r.onlink && k.metric == 0
	if flannel || r.protocol == rtnl.RouteProtocol && (here || rtnl.Inside(k.dst, s.networks)) {
		s.routes[k] = r
	}
}

// holds reports whether an address is one of the overlay's.
func (s *state) holds(a netip.Addr) bool {
	return a.IsValid() && rtnl.Inside(netip.PrefixFrom(a, a.BitLen()), s.networks)
}

// parseRoute reads a route of the main table, but for the blackholes of dataplane/hostroute and what that makes unreachable.
func parseRoute(body []byte) (k routeKey, r route, ok bool) {
	h, rest := rtmsg.Split(body, unix.SizeofRtMsg)
	if h == nil || h[4] != unix.RT_TABLE_MAIN || h[7] == unix.RTN_BLACKHOLE && h[5] == rtnl.RouteProtocol ||
		native.Uint32(h[8:])&unix.RTM_F_CLONED != 0 {
		return k, r, false
	}
	r = route{protocol: h[5], onlink: native.Uint32(h[8:])&unix.RTNH_F_ONLINK != 0}
	for typ, v := range rtmsg.Attrs(rest) {
		switch typ {
		case unix.RTA_DST:
			a, _ := netip.AddrFromSlice(v)
			k.dst = netip.PrefixFrom(a, int(h[1]))
		case unix.RTA_OIF:
			r.link = int(rtmsg.Uint32(v))
		case unix.RTA_PRIORITY:
			k.metric = rtmsg.Uint32(v)
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(v)
		case rtaNHID:
			r.nexthop = rtmsg.Uint32(v)
		}
	}
	k.metric = uint32(rtnl.MetricOf(k.dst, int(k.metric)))
	if h[7] != unix.RTN_UNICAST {
		r.link = noLink
	}
	// As rtnl.IsHostRoute has it.
	r.direct = r.protocol == rtnl.RouteProtocol && r.gateway.IsValid() && !r.onlink && r.nexthop == 0 && r.gateway != k.dst.Addr()
	nowhere := h[7] == unix.RTN_UNREACHABLE && h[5] == rtnl.RouteProtocol && k.metric == rtnl.NowhereMetric
	return k, r, k.dst.IsValid() && !nowhere
}
