package hostroute

import (
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// resolver asks the kernel where packets to an address go, and remembers the answers until
// forget.
type resolver struct {
	rt        *rtnl.Conn
	addresses map[netip.Addr]int // index of the link on which the address is, or 0
	links     map[int]bool       // whether it has neighbours
}

func newResolver(rt *rtnl.Conn) *resolver {
	r := &resolver{rt: rt}
	r.forget()
	return r
}

func (r *resolver) forget() { r.addresses, r.links = map[netip.Addr]int{}, map[int]bool{} }

// used returns the links of the remembered answers.
func (r *resolver) used() map[int]bool {
	links := map[int]bool{}
	for _, l := range r.addresses {
		if l != 0 {
			links[l] = true
		}
	}
	return links
}

// link returns the index of the interface on which an address is a neighbour of this host, or
// 0. An address without a route is not a neighbour.
func (r *resolver) link(a netip.Addr) int {
	if l, ok := r.addresses[a]; ok {
		return l
	}
	l := 0
	if routes, err := r.rt.Handle().RouteGet(a.AsSlice()); err == nil && len(routes) == 1 && isNeighbour(routes[0]) && r.hasNeighbours(routes[0].LinkIndex) {
		l = routes[0].LinkIndex
	}
	r.addresses[a] = l
	return l
}

func (r *resolver) hasNeighbours(link int) bool {
	has, ok := r.links[link]
	if !ok {
		l, err := r.rt.LinkByIndex(link)
		has = err == nil && hasNeighbours(l.Attrs())
		r.links[link] = has
	}
	return has
}

// isNeighbour reports whether a resolved route leads to its destination itself.
func isNeighbour(r netlink.Route) bool {
	return r.Type == unix.RTN_UNICAST && r.Gw == nil && r.Via == nil && r.Encap == nil && r.MPLSDst == nil &&
		len(r.MultiPath) == 0 && r.LinkIndex > 0
}

// hasNeighbours reports whether a neighbour on the link can forward for us. A tunnel's other
// end accepts only what it was configured for, and an overlay device would be a loop.
func hasNeighbours(a *netlink.LinkAttrs) bool {
	overlay := a.Alias == rtnl.Alias || dataplane.IsDeviceName(a.Name) || strings.HasPrefix(a.Name, rtnl.TemporaryPrefix)
	return !overlay && a.Flags&(net.FlagLoopback|net.FlagPointToPoint) == 0 && a.RawFlags&unix.IFF_NOARP == 0
}
