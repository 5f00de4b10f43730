package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/encap"
)

const restart = "restart overlayd, which makes it again; pods keep their addresses"

// checkUnderlay looks whether the interface to the other hosts can be used.
func checkUnderlay(o *overlay) (all []Result) {
	if found := o.warned(dataplane.WarnUnderlay); found != nil {
		return found
	}
	if o.device == "" {
		return unknown("the underlay interface is not known: " + o.todo())
	}
	locals := o.locals()
	faults, err := underlay.Faults(underlay.Interface{Name: o.device}, locals)
	if err != nil {
		return unreadable("the underlay interface", err)
	}
	for _, w := range faults {
		all = append(all, fail(w.Text, w.Fix)...)
	}
	if all == nil {
		all = ok(strings.TrimSuffix(fmt.Sprintf("%s is up, with %s", o.device, joined(locals)), ", with "))
	}
	return all
}

// checkDevice looks for a device that is up and has the base address of each own subnet.
func checkDevice(o *overlay) (all []Result) {
	switch {
	case o.isPlain():
		return ok("this backend has no device")
	case len(o.devices) == 0 && !o.isServed():
		return unknown("there is no overlay device, and whether the backend needs one is not known: " + o.todo())
	case len(o.devices) == 0:
		return fail("there is no overlay device", restart)
	}
	missing, fix := o.subnets(), restart
	if !o.isServed() {
		fix = o.todo()
	}
	for _, l := range o.devices {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 {
			all = append(all, fail(a.Name+" is down", "ip link set "+a.Name+" up")...)
		} else if !rtnl.HasCarrier(l) {
			all = append(all, noCarrier(l, fix)...)
		}
		if a.MasterIndex != 0 {
			all = append(all, fail(a.Name+" is part of another device, such as a bridge, which takes its packets", "ip link set "+a.Name+" nomaster")...)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return unreadable("the addresses of "+a.Name, err)
		}
		missing = slices.DeleteFunc(slices.Clone(missing), func(p netip.Prefix) bool {
			return slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(net.IP(p.Addr().AsSlice())) })
		})
	}
	if len(missing) > 0 {
		all = append(all, fail(fmt.Sprintf("%s has no address of %s", strings.Join(o.deviceNames(), ", "), joined(missing)), restart)...)
	}
	if all != nil {
		return all
	}
	text := fmt.Sprintf("%s is up, with the address of %s", strings.Join(o.deviceNames(), ", "), joined(o.subnets()))
	if o.scene.Daemon == nil && !slices.ContainsFunc(o.devices, isVxlan) {
		return unknown(text + "; whether a process carries its packets " + o.untold()) // systemd may hold it meanwhile
	}
	return ok(text)
}

// noCarrier says why a device has no carrier: a TUN device if nobody has it open, a vxlan device if somebody wants that.
func noCarrier(l netlink.Link, fix string) []Result {
	name := l.Attrs().Name
	if isVxlan(l) {
		return fail(name+" has no carrier: somebody has set protodown", "ip link set "+name+" protodown off")
	}
	return fail(name+" has no carrier: no process carries its packets", fix)
}

func isVxlan(l netlink.Link) bool {
	_, is := l.(*netlink.Vxlan)
	return is
}

// checkMAC compares the MACs that this node has published with those of its devices. A TUN device has none.
func checkMAC(o *overlay) []Result {
	switch {
	case o.isPlain():
		return ok("this backend publishes no MAC")
	case o.status == nil || o.status.Lease == nil:
		return unknown(o.untold())
	case o.status.Mode == "userspace":
		return ok("the userspace dataplane answers for the published MAC")
	}
	var have []string
	for _, l := range o.devices {
		if isVxlan(l) {
			have = append(have, l.Attrs().HardwareAddr.String())
		}
	}
	if len(have) == 0 {
		return unknown("there is no overlay device")
	}
	for _, v := range o.status.Lease.VTEPs {
		if v.MAC != "" && !slices.Contains(have, v.MAC) {
			return fail(fmt.Sprintf("peers send to MAC %s, and the devices have %s", v.MAC, strings.Join(have, ", ")),
				"see who changes the MAC: systemd-udevd does so if a .link file says MACAddressPolicy=persistent; overlayd puts it back")
		}
	}
	return ok("the devices have the published MAC")
}

// checkMTU looks whether packets of the overlay's MTU fit the underlay interface, and the way to each peer.
func checkMTU(o *overlay) []Result {
	if found := o.warned("peers_" + status.ReasonPathMTU); found != nil {
		return found
	}
	if o.isPlain() {
		return ok("this backend adds nothing to packets")
	}
	room, err := underlay.MTUOf(o.device, o.locals())
	if err != nil || len(o.devices) == 0 {
		return unknown("the underlay interface or the overlay device is not known: " + o.todo())
	}
	mtu := 0
	for _, l := range o.devices {
		mtu = max(mtu, l.Attrs().MTU)
	}
	overhead := encap.Overhead(netip.IPv4Unspecified())
	for _, local := range o.locals() {
		overhead = max(overhead, encap.Overhead(local))
	}
	has, give := fmt.Sprintf("%s has MTU %d", o.device, room), "ip link set "+o.device+" mtu"
	if l, err := netlink.LinkByName(o.device); err == nil && l.Attrs().MTU != room { // a loopback, dummy or VRF device
		has, give = fmt.Sprintf("packets from %s leave by a link of MTU %d", o.device, room), "give the links by which they leave an MTU of"
	}
	if mtu+overhead > room {
		return fail(fmt.Sprintf("packets of %d bytes take %d in VXLAN, and %s", mtu, mtu+overhead, has), o.mtuFix(fmt.Sprintf("%s %d", give, mtu+overhead), room-overhead))
	}
	return ok(fmt.Sprintf("packets of %d bytes take %d in VXLAN, and %s", mtu, mtu+overhead, has))
}

// mtuFix adds another MTU of the overlay to what makes packets fit, if the overlay's families can have that.
func (o *overlay) mtuFix(fix string, over int) string {
	network := control.Network{EnableIPv6: slices.ContainsFunc(o.subnets(), func(p netip.Prefix) bool { return p.Addr().Is6() })}
	if fit.CheckMTU(network, underlay.Interface{MTU: over}) != nil {
		return fix
	}
	return fmt.Sprintf("%s, or restart overlayd, which then takes MTU %d", fix, over)
}
