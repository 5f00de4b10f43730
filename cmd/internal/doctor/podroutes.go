package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/firewall"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/sysctl"
)

// maxAsked bounds for how many peers one check asks the kernel.
const maxAsked = 16

// strayed says which packets of this host's pods for peers the kernel would send elsewhere or refuse, as rules of policy routing can make it. That
// the interface to the pods does not forward is told by a check of its own.
func (o *overlay) strayed() (all []string) {
	if o.status == nil {
		return nil
	}
	asked := 0
	for _, own := range o.subnets() {
		pods, err := netlink.LinkByName(firewall.PodDevice(own, o.deviceNames()))
		if err != nil || own.Addr().Is4() && sysctl.IsOff(pods.Attrs().Name) {
			continue
		}
		for i := range o.status.Peers {
			p := &o.status.Peers[i]
			isUsed := p.State == controller.PeerUp || p.State == controller.PeerDirect
			if !isUsed || p.Subnet.Addr().Is4() != own.Addr().Is4() || asked == maxAsked {
				continue
			}
			asked++
			if way := o.wayOf(own.Addr().Next().Next(), pods, p); way != "" {
				all = append(all, fmt.Sprintf("packets of pods for %s %s", p.Subnet, way))
			}
		}
	}
	return all
}

// wayOf returns which way the kernel sends a packet that a pod behind a device sends to a peer; empty if that is right.
func (o *overlay) wayOf(pod netip.Addr, pods netlink.Link, p *controller.PeerStatus) string {
	routes, err := netlink.RouteGetWithOptions(p.Subnet.Addr().AsSlice(), &netlink.RouteGetOptions{IifIndex: pods.Attrs().Index, SrcAddr: pod.AsSlice(), FIBMatch: true})
	isRefusal := func(e error) bool { return errors.Is(err, e) }
	switch {
	case slices.ContainsFunc([]error{unix.EACCES, unix.EHOSTUNREACH, unix.ENETUNREACH}, isRefusal):
		return "are refused: " + err.Error()
	case err != nil || len(routes) == 0:
		return "" // it is not known
	}
	r := routes[0]
	isOwn := slices.ContainsFunc(o.devices, func(l netlink.Link) bool { return l.Attrs().Index == r.LinkIndex })
	isDirect := p.State == controller.PeerDirect && r.Gw.Equal(net.IP(p.VTEP.AsSlice())) // kernels before 4.13 do not tell the protocol
	if isOwn || isDirect || r.Protocol == rtnl.RouteProtocol {
		return ""
	}
	way := "leave"
	if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
		way += " by " + l.Attrs().Name
	}
	if r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
		way += fmt.Sprintf(", by table %d", r.Table)
	}
	return way
}
