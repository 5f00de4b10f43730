package kernel

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// fdbEntry is one forwarding entry of the vxlan device: frames to the MAC go to
// the underlay address.
type fdbEntry struct {
	mac encap.MAC
	dst netip.Addr
}

// routeKey identifies a route of the main table among those on our device.
// metric is 0 for the family's default.
type routeKey struct {
	dst    netip.Prefix
	metric uint32
}

// route is what a route does: it goes through a nexthop object, or where
// nexthop is 0 through a gateway.
type route struct {
	protocol uint8
	nexthop  uint32 // id
	gateway  netip.Addr
	onlink   bool
}

// state is what the kernel holds on one overlay device, as far as it is ours:
// what was read, changed by every request that succeeded since.
type state struct {
	neigh    map[netip.Addr]encap.MAC // permanent neighbours
	fdb      map[fdbEntry]bool        // unicast forwarding entries
	nexthops map[netip.Addr]uint32    // gateway → id of our nexthop object
	spare    []uint32                 // our nexthop objects of no use: doubled or malformed
	routes   map[routeKey]route       // of our protocol, or of flannel's shape
}

func newState() *state {
	return &state{
		neigh:    map[netip.Addr]encap.MAC{},
		fdb:      map[fdbEntry]bool{},
		nexthops: map[netip.Addr]uint32{},
		routes:   map[routeKey]route{},
	}
}

// neighbour is an entry of the neighbour table or of a forwarding table.
type neighbour struct {
	index     int
	family    uint8
	permanent bool
	plain     bool // no other port, VNI or interface than the device's own
	mac       encap.MAC
	dst       netip.Addr
}

func parseNeighbour(body []byte) (n neighbour, ok bool) {
	h, rest := fixed(body, unix.SizeofNdMsg)
	if h == nil {
		return n, false
	}
	n.index, n.family, n.plain = int(native.Uint32(h[4:])), h[0], true
	n.permanent = native.Uint16(h[8:])&unix.NUD_PERMANENT != 0
	for typ, v := range attrs(rest) {
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

// addNeighbour takes a neighbour entry of the device.
func (s *state) addNeighbour(n neighbour) {
	if n.permanent {
		s.neigh[n.dst] = n.mac
	}
}

// addFDB takes a forwarding entry of the device. The default entry, of the zero
// MAC, is nobody's and left; so is what a learning device has learnt. An entry
// with special treatment is left out, so that a wanted one replaces it.
func (s *state) addFDB(n neighbour, learning bool) {
	if n.mac.IsUnicast() && n.plain && (n.permanent || !learning) {
		s.fdb[fdbEntry{n.mac, n.dst}] = n.permanent
	}
}

// addNexthop takes a nexthop object of the device, if it is ours.
func (s *state) addNexthop(body []byte) {
	h, rest := fixed(body, unix.SizeofNhmsg)
	if h == nil || h[2] != rtnl.RouteProtocol {
		return
	}
	var id uint32
	var gateway netip.Addr
	for typ, v := range attrs(rest) {
		switch typ {
		case unix.NHA_ID:
			id = toUint32(v)
		case unix.NHA_GATEWAY:
			gateway, _ = netip.AddrFromSlice(v)
		}
	}
	_, doubled := s.nexthops[gateway]
	if doubled || !gateway.IsValid() || native.Uint32(h[4:])&unix.RTNH_F_ONLINK == 0 {
		s.spare = append(s.spare, id)
		return
	}
	s.nexthops[gateway] = id
}

// addRoute takes a route of the main table if it is on the device of that index
// and ours, or such as flannel makes: protocol boot, through the subnet's base
// address, on link. Every other route is somebody else's.
func (s *state) addRoute(body []byte, index int) {
	k, r, oif, ok := parseRoute(body)
	if !ok || oif != index {
		return
	}
	flannel := r.protocol == unix.RTPROT_BOOT && r.gateway == k.dst.Addr() && r.onlink && k.metric == 0
	if r.protocol == rtnl.RouteProtocol || flannel {
		s.routes[k] = r
	}
}

// parseRoute reads a unicast route of the main table and its device.
func parseRoute(body []byte) (k routeKey, r route, oif int, ok bool) {
	h, rest := fixed(body, unix.SizeofRtMsg)
	if h == nil || h[4] != unix.RT_TABLE_MAIN || h[7] != unix.RTN_UNICAST || native.Uint32(h[8:])&unix.RTM_F_CLONED != 0 {
		return k, r, 0, false
	}
	r = route{protocol: h[5], onlink: native.Uint32(h[8:])&unix.RTNH_F_ONLINK != 0}
	for typ, v := range attrs(rest) {
		switch typ {
		case unix.RTA_DST:
			a, _ := netip.AddrFromSlice(v)
			k.dst = netip.PrefixFrom(a, int(h[1]))
		case unix.RTA_OIF:
			oif = int(toUint32(v))
		case unix.RTA_PRIORITY:
			k.metric = toUint32(v)
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(v)
		case rtaNHID:
			r.nexthop = toUint32(v)
		}
	}
	if h[0] == unix.AF_INET6 && k.metric == defaultMetric6 {
		k.metric = 0
	}
	return k, r, oif, k.dst.IsValid()
}

// defaultMetric6 is what the kernel gives an IPv6 route without a metric (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024
