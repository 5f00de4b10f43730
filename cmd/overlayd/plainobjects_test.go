package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// objects returns the objects of host i, a line each, in no order.
func (w *world) objects(i int) []string {
	h := w.hosts[i]
	lines := slices.Clone(nobodysObjects())
	for f := range w.families() {
		lines = append(lines,
			fmt.Sprintf("address eth0 %s/%d", address(f, h.slot), []int{24, 64}[f]),
			fmt.Sprintf("route default via %s dev eth0 proto boot", address(f, 1)))
	}
	for n, o := range h.overlays {
		lines = append(lines, w.podObjects(o, n)...)
		if o.device != "" {
			lines = append(lines, w.deviceObjects(o, n)...)
		}
		lines = append(lines, w.files(h, o, n)...)
		if o.guard {
			lines = append(lines, w.guardObjects(n)...)
		}
	}
	return append(lines, w.rules(h)...)
}

// nobodysObjects are on every host.
func nobodysObjects() []string {
	return []string{
		"link lo loopback mtu 65536 up", "link eth0 veth mtu 1500 up",
		"address lo 127.0.0.1/8", "address lo ::1/128",
		"rule inet 0 all table local", "rule inet 32766 all table main", "rule inet 32767 all table default",
		"rule inet6 0 all table local", "rule inet6 32766 all table main",
	}
}

// podObjects are those of the test, which makes the pod of a network.
func (w *world) podObjects(o *plainOverlay, n int) (lines []string) {
	name := fmt.Sprintf("pod%d", n)
	lines = append(lines, "link "+name+" veth up")
	for _, s := range o.subnets {
		base := netip.MustParsePrefix(s)
		gateway, pod := base.Addr().Next(), base.Addr().Next()
		for range n + 1 {
			pod = pod.Next()
		}
		lines = append(lines, fmt.Sprintf("address %s %s/%d", name, gateway, gateway.BitLen()),
			fmt.Sprintf("route %s dev %s proto boot", pod, name))
	}
	return lines
}

// deviceName is that of the overlay device of a family.
func deviceName(family, vni int) string {
	return fmt.Sprintf("%s.%d", []string{"flannel", "flannel-v6"}[family], vni)
}

// deviceObjects are the overlay devices of a network and what is on them.
func (w *world) deviceObjects(o *plainOverlay, n int) (lines []string) {
	vni, alias := w.networks[n].vni, ""
	if o.alias {
		alias = " alias overlayd"
	}
	if o.device == "tun" {
		name := deviceName(0, vni)
		lines = append(lines, fmt.Sprintf("link %s tun mtu %d%s up", name, o.mtu, alias))
		for f, s := range o.subnets {
			lines = append(lines, fmt.Sprintf("address %s %s", name, baseOf(s)),
				fmt.Sprintf("route %s dev %s proto 211 metric 1048576", w.networks[n].is[f], name))
		}
	}
	for f, s := range o.subnets {
		name := deviceName(f, vni)
		if o.device == "vxlan" {
			lines = append(lines, "address "+name+" "+baseOf(s), fmt.Sprintf("link %s vxlan id %d local %s dev eth0 port 8472 mtu %d mac %s%s up",
				name, vni, address(f, o.local), min(o.mtu, 1450-20*f), o.macs[f], alias))
			for mac, slot := range o.fdb[f] {
				lines = append(lines, fmt.Sprintf("fdb %s %s dst %s", name, mac, address(f, slot)))
			}
		}
		for j, peer := range o.seen {
			lines = append(lines, w.peerObjects(o, name, f, w.hosts[j].overlays[n].subnets[f], peer)...)
		}
	}
	return lines
}

// guardObjects are what keeps others out of a network, and its packets in.
func (w *world) guardObjects(n int) []string {
	lines := []string{fmt.Sprintf("nft inet overlayd-guard-%d", w.networks[n].vni)}
	for f := range w.families() {
		lines = append(lines, fmt.Sprintf("route unreachable %s dev %s proto 211 metric 4294967294", w.networks[n].is[f], []string{"", "lo"}[f]))
	}
	return lines
}

// baseOf is the first address of a subnet, as a device has it.
func baseOf(subnet string) string {
	base := netip.MustParsePrefix(subnet).Addr()
	return fmt.Sprintf("%s/%d", base, base.BitLen())
}

// peerObjects are what leads to a peer's subnet of one family.
func (w *world) peerObjects(o *plainOverlay, device string, f int, subnet string, peer sight) (lines []string) {
	protocol := "211"
	if o.by == modeFlanneld {
		protocol = "boot"
	}
	base, _, _ := strings.Cut(subnet, "/")
	if o.device == "vxlan" && (o.by != modeFlanneld || !w.direct) {
		lines = append(lines, fmt.Sprintf("neighbour %s %s mac %s", device, base, peer.macs[f]))
	}
	switch {
	case w.direct:
		return append(lines, fmt.Sprintf("route %s via %s dev eth0 proto %s", subnet, address(f, peer.slot), protocol))
	case o.device != "vxlan":
		return lines
	case o.by != modeFlanneld:
		lines = append(lines, fmt.Sprintf("nexthop via %s dev %s proto 211 onlink", base, device))
	}
	return append(lines, fmt.Sprintf("route %s via %s dev %s proto %s onlink", subnet, base, device, protocol))
}

// files are the subnet file and what lies beside it, and what the daemon claims.
func (w *world) files(h *plainHost, o *plainOverlay, n int) (lines []string) {
	net := w.networks[n]
	name := net.name
	if name == "" {
		name = "subnet"
	}
	if o.env != "" {
		text, mtu := "", o.mtu
		if o.env == modeFlanneld {
			mtu = 1450
		}
		for f, s := range o.subnets {
			key := []string{"FLANNEL_", "FLANNEL_IPV6_"}[f]
			base := netip.MustParsePrefix(s)
			text += fmt.Sprintf(" %sNETWORK=%s %sSUBNET=%s/%d", key, net.is[f], key, base.Addr().Next(), base.Bits())
		}
		lines = append(lines, fmt.Sprintf("file %s.env 0644:%s FLANNEL_MTU=%d FLANNEL_IPMASQ=%t", name, text, mtu, w.masquerades(o.env)))
	}
	if o.node {
		text := fmt.Sprintf(" vni %d", net.vni)
		for _, p := range net.is {
			text += ", network " + p
		}
		for _, slot := range published(o) {
			for f := range w.families() {
				text += ", public " + address(f, slot)
			}
		}
		lines = append(lines, fmt.Sprintf("file %s.env.node 0600: id,%s, wrote %s.env", name, text, name))
	}
	if h.claims {
		lines = append(lines, fmt.Sprintf("claim %d", net.vni))
	}
	return lines
}

// mayBe are the files that may lie there too: an overlayd notes the leases from time to time, and one of
// one network has a socket at which another one can take its place, and every one its admin socket; they stay if it is killed.
func (w *world) mayBe(i int) (lines []string) {
	for n, o := range w.hosts[i].overlays {
		if name := cmp.Or(w.networks[n].name, "subnet"); o.node {
			lines = append(lines, fmt.Sprintf("file %s.env.leases 0600: leases", name), fmt.Sprintf("file %s.env.handover 0600: socket", name),
				fmt.Sprintf("file %s.env.sock 0660: socket", name), "file overlayd.sock 0660: socket")
		}
	}
	return lines
}

// published are the slots of the node file: the last one first.
func published(o *plainOverlay) []int {
	slots := slices.Clone(o.former)
	slices.Reverse(slots)
	return slots
}

// masquerades reports whether daemons of a kind do: two flannelds on a host must not, because they would share
// their chains.
func (w *world) masquerades(by string) bool {
	return w.masq && (by != modeFlanneld || len(w.networks) == 1)
}

// store returns the keys of all networks with their values, and those that may be there: the records of
// daemons that were killed, which live for some seconds.
func (w *world) store(configs []string) (must, may []string) {
	for n, net := range w.networks {
		prefix := "/coreos.com/network/"
		if net.name != "" {
			prefix += net.name + "/"
		}
		must = append(must, fmt.Sprintf("key %sconfig = %s", prefix, configs[n]))
		for _, h := range w.hosts {
			o := h.overlays[n]
			if o.lease != 0 {
				must = append(must, fmt.Sprintf("key %ssubnets/%s leased 24h = %s", prefix, w.leaseKey(o), w.leaseValue(o, net.vni)))
			}
			record := fmt.Sprintf("key %soverlayd/nodes/%s leased 20s = record of %s", prefix, address(0, h.slot), h.name)
			switch {
			case h.daemon == modeKernel || h.daemon == modeUserspace:
				must = append(must, record)
			case h.ghost:
				may = append(may, record)
			}
		}
	}
	return must, may
}

func (w *world) leaseKey(o *plainOverlay) string {
	return strings.ReplaceAll(strings.Join(o.subnets, "&"), "/", "-")
}

func (w *world) leaseValue(o *plainOverlay, vni int) string {
	public6, data6 := "null", ""
	if w.dual {
		public6 = fmt.Sprintf("%q", address(1, o.lease))
		data6 = fmt.Sprintf(`,"BackendV6Data":{"VNI":%d,"VtepMAC":%q}`, vni, o.macs[1])
	}
	return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":%s,"BackendType":"vxlan","BackendData":{"VNI":%d,"VtepMAC":%q}%s}`,
		address(0, o.lease), public6, vni, o.macs[0], data6)
}
