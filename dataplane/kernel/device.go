package kernel

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// deviceNames returns the names of the devices that an overlay may have, by its VNI.
func deviceNames(vni uint32) [2]string {
	return [2]string{dataplane.DeviceName(vni), dataplane.DeviceNameV6(vni)}
}

// deviceName returns the name of the device of an underlay's family.
func deviceName(local netip.Addr, vni uint32) string {
	if local.Is4() {
		return dataplane.DeviceName(vni)
	}
	return dataplane.DeviceNameV6(vni)
}

// vxlanLink is the device with the attributes that flannel v0.28 gives it. UDPCSum stays false:
// the library then sends no attribute, and the kernel's default is on (netlink issue 1144).
func vxlanLink(c *Config, u dataplane.Underlay, name string, mac encap.MAC) *netlink.Vxlan {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.TxQLen, a.HardwareAddr = name, c.MTU, 0, mac[:]
	return &netlink.Vxlan{
		LinkAttrs:    a,
		VxlanId:      int(c.VNI),
		VtepDevIndex: u.Link,
		SrcAddr:      net.IP(u.Local.AsSlice()),
		Learning:     c.Learning,
		Port:         int(c.Port),
		GBP:          c.GBP,
	}
}

// differences describes how an existing device differs from the wanted one: in attributes that
// are fixed when a device is made, and in those that the vxlan driver lets change later. MTU,
// alias and MAC are not compared.
func differences(have, want *netlink.Vxlan) (fixed, mutable []string) {
	note := func(to *[]string, what string, h, w any) {
		if h != w {
			*to = append(*to, fmt.Sprintf("%s is %v, want %v", what, h, w))
		}
	}
	note(&fixed, "VNI", have.VxlanId, want.VxlanId)
	note(&fixed, "group", ipText(have.Group), ipText(want.Group))
	note(&fixed, "port", have.Port, want.Port)
	note(&fixed, "gbp", have.GBP, want.GBP)
	note(&fixed, "l2miss", have.L2miss, want.L2miss)
	note(&fixed, "external", have.FlowBased, want.FlowBased)
	note(&fixed, "zero checksums sent over IPv6", have.UDP6ZeroCSumTx, want.UDP6ZeroCSumTx)
	note(&fixed, "zero checksums taken over IPv6", have.UDP6ZeroCSumRx, want.UDP6ZeroCSumRx)
	note(&mutable, "underlay link", have.VtepDevIndex, want.VtepDevIndex)
	note(&mutable, "local address", ipText(have.SrcAddr), ipText(want.SrcAddr))
	note(&mutable, "ttl", have.TTL, want.TTL)
	note(&mutable, "learning", have.Learning, want.Learning)
	return fixed, mutable
}

func ipText(ip net.IP) string {
	a, ok := netip.AddrFromSlice(ip)
	if !ok || a.IsUnspecified() {
		return "none"
	}
	return a.Unmap().String()
}

func isUp(a *netlink.LinkAttrs) bool { return a.Flags&net.FlagUp != 0 }

// linkMAC returns the device's MAC, or the zero MAC if it has none.
func linkMAC(l netlink.Link) encap.MAC {
	var m encap.MAC
	if h := l.Attrs().HardwareAddr; len(h) == len(m) {
		copy(m[:], h)
	}
	return m
}
