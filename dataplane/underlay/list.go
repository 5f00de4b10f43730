package underlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readHost reads what c needs to choose from.
func readHost(c criteria) (host, error) {
	var h host
	var err error
	if h.links, err = readLinks(); err != nil {
		return host{}, err
	}
	if c.canReach.IsValid() {
		h.reach, h.reachErr = routeTo(c.canReach)
	}
	if c.named() {
		return h, nil
	}
	for f, family := range families {
		if h.defaults[f], err = defaultRoutes(family); err != nil {
			return host{}, err
		}
	}
	return h, nil
}

// families are netlink's names for what is kept by family.
var families = [2]int{netlink.FAMILY_V4, netlink.FAMILY_V6}

func readLinks() ([]link, error) {
	devices, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	byIndex := make(map[int][]address, len(devices))
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		byIndex[a.LinkIndex] = append(byIndex[a.LinkIndex], address{
			ip:         ip.Unmap(),
			permanent:  a.Flags&unix.IFA_F_PERMANENT != 0,
			secondary:  a.Flags&unix.IFA_F_SECONDARY != 0,
			deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
			duplicate:  a.Flags&unix.IFA_F_DADFAILED != 0,
			tentative:  a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC) == unix.IFA_F_TENTATIVE,
		})
	}
	links := make([]link, 0, len(devices))
	for _, d := range devices {
		at := d.Attrs()
		links = append(links, link{
			name: at.Name, index: at.Index, mtu: at.MTU,
			up: at.Flags&net.FlagUp != 0, carrier: at.RawFlags&unix.IFF_LOWER_UP != 0, loopback: at.Flags&net.FlagLoopback != 0,
			virtual: at.Flags&net.FlagLoopback != 0 || d.Type() == "dummy" || d.Type() == "vrf", vrf: d.Type() == "vrf", master: at.MasterIndex,
			pods: !slices.Contains(ofNICs, d.Type()), addrs: byIndex[at.Index],
		})
	}
	return links, nil
}

// defaultRoutes returns a family's default routes of the main table, the lowest
// metric first. A multipath route stands for each of its next hops.
func defaultRoutes(family int) ([]egress, error) {
	// A nil destination is the default one; on a host with 100 k peers the
	// others are not kept.
	return routes(family, netlink.RT_FILTER_DST, func(netlink.Route) bool { return true })
}

// routedAway returns where the routes of the main table that have a next hop lead.
func routedAway(family int) ([]egress, error) {
	return routes(family, 0, func(r netlink.Route) bool { return r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 })
}

// routes returns where routes of the main table lead.
func routes(family int, filter uint64, keep func(netlink.Route) bool) ([]egress, error) {
	all, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE|filter)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	all = slices.DeleteFunc(all, func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST || !keep(r) })
	slices.SortStableFunc(all, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	var out []egress
	for _, r := range all {
		src, _ := netip.AddrFromSlice(r.Src)
		if r.LinkIndex != 0 {
			out = append(out, egress{r.LinkIndex, src.Unmap()})
		}
		for _, hop := range r.MultiPath {
			out = append(out, egress{hop.LinkIndex, src.Unmap()})
		}
	}
	return out, nil
}

// routeTo asks the kernel which way it would send a packet.
func routeTo(a netip.Addr) (egress, error) {
	rs, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return egress{}, fmt.Errorf("get route: %w", err)
	}
	if len(rs) == 0 {
		return egress{}, errors.New("get route: no answer")
	}
	src, _ := netip.AddrFromSlice(rs[0].Src)
	return egress{rs[0].LinkIndex, src.Unmap()}, nil
}

// dump repeats a dump that the kernel reports as interrupted. A host that starts many pods
// interrupts dumps often, but never for long.
func dump[T any](read func() ([]T, error)) (all []T, err error) {
	for range 50 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
