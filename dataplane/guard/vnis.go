package guard

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
)

// A datagram of a VNI that no device of this host has is dropped by the kernel's vxlan, which does not count it. So it is counted here.

// vnis are those of the other vxlan devices at the port, sorted.
type vnis struct {
	list []uint32
	any  bool // one of them takes every VNI, or it is not known which there are
}

func (v vnis) equal(o vnis) bool { return v.any == o.any && slices.Equal(v.list, o.list) }

// otherLinks lists all links, and returns what the rules have to know of others' devices.
func (c *Config) otherLinks() (v vnis, vrf bool) {
	links, err := netlink.LinkList()
	for try := 0; try < 3 && errors.Is(err, netlink.ErrDumpInterrupted); try++ { // links came or went meanwhile
		links, err = netlink.LinkList()
	}
	v.any = err != nil
	for _, l := range links {
		vrf = vrf || l.Type() == "vrf"
		d, ok := l.(*netlink.Vxlan)
		switch {
		case !ok || d.Port != int(c.Port):
		case d.FlowBased:
			v.any = true
		case d.VxlanId != int(c.VNI):
			v.list = append(v.list, uint32(d.VxlanId))
		}
	}
	slices.Sort(v.list)
	v.list = slices.Compact(v.list) // one for each family
	return v, vrf
}

// stray counts what has the VNI of no network here. Of the guards of several networks of this process the one of the lowest VNI does.
func (b builder) stray() chain {
	c := chain{name: chainStray}
	b.disown(&c)
	if b.others.any || !b.Alone && len(b.others.list) > 0 && b.others.list[0] < b.VNI {
		return c
	}
	for _, vni := range b.others.list {
		c.add(accept, vniIs(vni, false))
	}
	c.count(dataplane.DropBadVNI)
	return c
}

// bridgeBelow returns the index of the bridge below a macvlan, macvtap or ipvlan device; 0: there is no bridge. If the bridge asks the rules of IP, it asks before the packet comes
// to the device, and the kernel does not ask again. A VLAN on a bridge does not count: pods on the bridge are not in the VLAN, and could send in the name of a peer.
func bridgeBelow(link int) int {
	l, err := netlink.LinkByIndex(link)
	for err == nil && l.Attrs().NetNsID < 0 && slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "bridge"}, l.Type()) {
		if l.Type() == "bridge" && l.Attrs().Index != link {
			return l.Attrs().Index
		}
		l, err = netlink.LinkByIndex(l.Attrs().ParentIndex)
	}
	return 0
}
