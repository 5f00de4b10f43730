package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// assumedMTU is that of a host whose address is on a loopback or dummy device as long as it has no route, or on a VRF without links: Ethernet's.
const assumedMTU = 1500

// MTUOf returns the MTU of what leaves by an interface from these addresses.
func MTUOf(name string, locals []netip.Addr) (int, error) {
	links, err := readLinks()
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(links, func(l link) bool { return l.name == name })
	if at < 0 {
		return 0, fmt.Errorf("there is no interface %s", name)
	}
	i := Interface{Name: name, Index: links[at].index, MTU: links[at].mtu}
	for _, a := range locals {
		if a.Is4() {
			i.IPv4.Local = a
		} else {
			i.IPv6.Local = a
		}
	}
	return host{links: links}.carries(i)
}

// carries returns the MTU of an interface. What has an address of a loopback or dummy device leaves by other links: the default routes
// say by which, and without one the routes that have a next hop, as routers announce them to hosts (BGP). What has an address of a VRF leaves by
// the links of that: by those that may lead to pods only if there are no others, because their MTU may follow that of the overlay. The smallest MTU counts.
func (h host) carries(i Interface) (mtu int, err error) {
	at := slices.IndexFunc(h.links, func(l link) bool { return l.index == i.Index && l.virtual })
	if at < 0 {
		return i.MTU, nil
	}
	if h.links[at].vrf {
		return min(cmp.Or(h.smallest(h.enslavedTo(i.Index, false)), h.smallest(h.enslavedTo(i.Index, true)), assumedMTU), i.MTU), nil
	}
	for _, read := range []func(family int) ([]egress, error){defaultRoutes, routedAway} {
		var ways []egress
		for f, end := range []End{i.IPv4, i.IPv6} {
			if !end.Local.IsValid() {
				continue
			}
			more, err := read(families[f])
			if err != nil {
				return 0, err
			}
			ways = append(ways, more...)
		}
		if mtu := h.smallest(ways); mtu > 0 {
			return min(mtu, i.MTU), nil
		}
	}
	return min(assumedMTU, i.MTU), nil
}

// enslavedTo returns the links of a VRF that may lead to pods, or the others.
func (h host) enslavedTo(master int, pods bool) (ways []egress) {
	for _, l := range h.links {
		if l.master == master && l.pods == pods {
			ways = append(ways, egress{index: l.index})
		}
	}
	return ways
}

// ofNICs are the kinds of links that carry what other hosts are sent. What is of any other kind, such as a bridge, veth, tap or tunnel, may lead to pods.
var ofNICs = []string{"device", "vlan", "bond", "team", "ipoib", "macsec"}

// smallest returns the smallest MTU of the links of ways that could carry an overlay; 0: there is none.
func (h host) smallest(ways []egress) (mtu int) {
	for _, l := range h.links {
		carries := slices.ContainsFunc(ways, func(e egress) bool { return e.index == l.index })
		if carries && l.up && !l.virtual && l.mtu > 0 && l.refusal(false) == nil && (mtu == 0 || l.mtu < mtu) {
			mtu = l.mtu
		}
	}
	return mtu
}
