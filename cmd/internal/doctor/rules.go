package doctor

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/firewall"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/sysctl"
)

// checkPort looks for firewalls that drop the datagrams of VXLAN.
func checkPort(o *overlay) []Result {
	if o.isPlain() {
		return ok("this backend uses no UDP port")
	}
	locals := o.locals()
	switch {
	case o.port == 0:
		return unknown("the UDP port is not known: " + o.todo())
	case len(locals) == 0:
		return unknown("the addresses of the underlay are not known: " + o.todo())
	}
	var packets []firewall.Packet
	for _, local := range locals {
		packets = append(packets, firewall.Tunnel(o.device, local, netip.Addr{}, o.port)...)
		for _, peer := range o.vteps() {
			if peer.Is4() == local.Is4() && len(packets) < 64 {
				packets = append(packets, firewall.Tunnel(o.device, local, peer, o.port)...)
			}
		}
	}
	return o.dropped(fmt.Sprintf("no firewall of this host drops UDP port %d", o.port), packets, firewall.Received, firewall.Sent)
}

// checkForwardChains looks for firewalls that drop what this host forwards for its pods.
func checkForwardChains(o *overlay) []Result {
	if o.isEmpty() {
		return unknown(noSubnet + o.todo())
	}
	packets := firewall.Overlay(o.subnets(), o.file.Networks(), o.deviceNames())
	return o.dropped("no firewall of this host drops what it forwards for the overlay", packets, firewall.Forwarded)
}

// dropped says which chains drop packets, for sure or perhaps.
func (o *overlay) dropped(fine string, packets []firewall.Packet, paths ...firewall.Path) (all []Result) {
	drops, err := firewall.Find(packets...)
	for _, path := range paths {
		of := func(sure bool) []firewall.Drop {
			return slices.DeleteFunc(slices.Clone(drops), func(d firewall.Drop) bool { return d.Packet.Path != path || d.Sure != sure })
		}
		if sure := of(true); len(sure) > 0 {
			w := firewall.Warn(sure, o.file.Networks(), o.port)
			all = append(all, Result{State: Fail, Text: w.Text, Fix: w.Fix})
			continue
		}
		if perhaps := of(false); len(perhaps) > 0 {
			all = append(all, Result{State: Warn, Text: fmt.Sprintf("%s may drop packets of the overlay: %s", firewall.Names(perhaps), perhaps[0].Rule), Fix: "see whether that rule means these packets"})
		}
	}
	switch {
	case all != nil:
		return all
	case err != nil:
		return unreadable("the rules", err)
	}
	return ok(fine)
}

// checkForwarding looks whether this host forwards, in each family of the overlay, and by the interfaces to its pods and to its peers.
func checkForwarding(o *overlay) (all []Result) {
	if found := o.warned(dataplane.WarnForwarding); found != nil { // it has tried to turn it on; or of one interface
		return found
	}
	for _, p := range o.subnets() {
		path, ipv6 := "net/ipv4/ip_forward", p.Addr().Is6()
		if ipv6 {
			path = "net/ipv6/conf/all/forwarding"
		}
		value, err := os.ReadFile("/proc/sys/" + path)
		if err != nil {
			return unreadable(path, err)
		}
		if strings.TrimSpace(string(value)) == "0" {
			w := sysctl.NotForwarding(ipv6, nil)
			if o.scene.Daemon == nil && !o.scene.isMute() {
				w.Fix = o.todo() + ", which turns it on, or " + w.Fix
			}
			all = append(all, fail(w.Text, w.Fix)...)
		}
	}
	for _, w := range sysctl.NoWay(o.ways()...) {
		all = append(all, fail(w.Text, w.Fix)...)
	}
	switch {
	case all != nil:
		return all
	case len(o.subnets()) == 0:
		return unknown(noSubnet + o.todo())
	}
	return ok("this host forwards")
}

// ways are the interfaces by which IPv4 packets from pods or for them arrive.
func (o *overlay) ways() (names []string) {
	for _, own := range o.subnets() {
		if !own.Addr().Is4() {
			continue
		}
		for _, name := range append(o.deviceNames(), firewall.PodDevice(own, o.deviceNames()), o.device) {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// checkReturnPath looks for strict rp_filter where the way back is another.
func checkReturnPath(o *overlay) []Result {
	if found := o.warned(dataplane.WarnReturnPath); found != nil {
		return found
	}
	if o.device == "" {
		return unknown("the underlay interface is not known: " + o.todo())
	}
	strict, err := sysctl.IsStrict(o.device)
	if err != nil {
		return unreadable("rp_filter of "+o.device, err)
	}
	if !strict {
		return ok("rp_filter of " + o.device + " is not strict")
	}
	peers := o.vteps()
	if len(peers) == 0 && !o.isServed() {
		return unknown("rp_filter of " + o.device + " is strict, and the peers are not known: " + o.todo())
	}
	list, err := sysctl.Detours(o.device, peers, 0)
	switch {
	case err != nil:
		return unreadable("the routes to peers", err)
	case len(list) > 0:
		w := sysctl.ReturnPathWarning(o.device, list)
		return fail(w.Text, w.Fix)
	}
	return ok("rp_filter of " + o.device + " is strict, and this host sends to its peers by that interface")
}

// rejects are the types of routes that refuse packets, as ip names them.
var rejects = map[int]string{unix.RTN_BLACKHOLE: "blackhole ", unix.RTN_UNREACHABLE: "unreachable ", unix.RTN_PROHIBIT: "prohibit ", unix.RTN_THROW: "throw "}

// checkRoutes looks for routes to subnets of the overlay that lead elsewhere.
func checkRoutes(o *overlay) []Result {
	if o.isEmpty() {
		return unknown(noSubnet + o.todo())
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return unreadable("the routes", err)
	}
	var foreign []string
	fix := ""
	for _, r := range routes {
		if dst := rtnl.Prefix(r.Dst); o.isForeign(r, dst) {
			text := rejects[r.Type] + dst.String()
			l, err := netlink.LinkByIndex(r.LinkIndex)
			if err == nil && rejects[r.Type] == "" {
				text += " dev " + l.Attrs().Name
			}
			foreign, fix = append(foreign, text), cmp.Or(fix, o.routeFix(r, dst, l, text))
		}
	}
	if len(foreign) > 0 {
		return warn("routes into the overlay lead elsewhere: "+strings.Join(foreign[:min(len(foreign), 5)], ", "), fix)
	}
	if strayed := o.strayed(); len(strayed) > 0 {
		return warn(strings.Join(strayed[:min(len(strayed), 5)], "; "),
			fmt.Sprintf("ip rule lists the rules: let packets for %s use the table main", joined(o.file.Networks())))
	}
	return ok("all routes into the overlay are its own")
}

// routeFix says how to get rid of a foreign route; l is nil if its device is not known. A route to a network in which this
// host has an address comes back with that.
func (o *overlay) routeFix(r netlink.Route, dst netip.Prefix, l netlink.Link, text string) string {
	sameLength := func(own netip.Prefix) bool { return own.Bits() == dst.Bits() && own.Addr().Is4() == dst.Addr().Is4() }
	switch {
	case r.Protocol != unix.RTPROT_KERNEL || l == nil:
		return "remove them, or choose another network for the overlay: ip route del " + text
	case l.Type() == "bridge" && slices.ContainsFunc(o.subnets(), sameLength):
		return fmt.Sprintf("if %[1]s has the pods of this host, it has the subnet from before: ip link del %[1]s, and restart these pods, which then get addresses of %[2]s", l.Attrs().Name, joined(o.subnets()))
	}
	return "choose another network for the overlay, or for " + l.Attrs().Name
}

// isForeign reports whether a route takes packets of the overlay elsewhere, or refuses them.
func (o *overlay) isForeign(r netlink.Route, dst netip.Prefix) bool {
	if !dst.IsValid() || r.Protocol == rtnl.RouteProtocol || r.Type != unix.RTN_UNICAST && rejects[r.Type] == "" ||
		slices.ContainsFunc(o.devices, func(l netlink.Link) bool { return l.Attrs().Index == r.LinkIndex }) {
		return false
	}
	inside := func(outer netip.Prefix) bool { return outer.Bits() <= dst.Bits() && outer.Contains(dst.Addr()) }
	return slices.ContainsFunc(o.file.Networks(), inside) && !slices.ContainsFunc(o.subnets(), inside)
}

// checkPods looks whether pods send larger packets than the overlay takes.
func checkPods(o *overlay) []Result {
	l := o.podLink()
	if l == nil {
		return unknown("no device of pods is there yet")
	}
	mtu := o.file.MTU
	if o.status != nil && o.status.MTU > 0 {
		mtu = o.status.MTU
	}
	if mtu == 0 {
		return unknown("the MTU of the overlay is not known: " + o.todo())
	}
	if a := l.Attrs(); a.MTU > mtu {
		return fail(fmt.Sprintf("pods behind %s send packets of up to %d bytes, and the overlay takes %d", a.Name, a.MTU, mtu),
			fmt.Sprintf("give the CNI plugin that MTU: flannel's takes FLANNEL_MTU of the subnet file; until then ip link set %s mtu %d", a.Name, mtu))
	}
	return ok(fmt.Sprintf("pods behind %s send packets that the overlay takes", l.Attrs().Name))
}

// podLink returns the device that leads to the pods, or nil.
func (o *overlay) podLink() netlink.Link {
	for _, own := range o.subnets() {
		if l, err := netlink.LinkByName(firewall.PodDevice(own, o.deviceNames())); err == nil && l.Attrs().Flags&net.FlagLoopback == 0 {
			return l
		}
	}
	return nil
}
