package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/encap"
)

// maxName is the longest name of a network device (IFNAMSIZ less its zero byte).
const maxName = 15

// deviceName is flannel's name for the overlay device of one family.
func deviceName(local netip.Addr, vni uint32) string {
	if local.Is4() {
		return fmt.Sprintf("flannel.%d", vni)
	}
	return fmt.Sprintf("flannel-v6.%d", vni)
}

// vxlanLink is the device with the attributes that flannel v0.28 gives it. UDPCSum
// stays false, which the library takes as "do not send the attribute", and not
// as "off": the kernel's default is then on (netlink issue 1144).
func vxlanLink(c *Config, name string, mac encap.MAC) *netlink.Vxlan {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.TxQLen, a.HardwareAddr = name, c.MTU, 0, mac[:]
	return &netlink.Vxlan{
		LinkAttrs:    a,
		VxlanId:      int(c.VNI),
		VtepDevIndex: c.Link,
		SrcAddr:      net.IP(c.Local.AsSlice()),
		Learning:     c.Learning,
		Port:         int(c.Port),
		GBP:          c.GBP,
	}
}

// differences names what an existing device has otherwise than the wanted one
// and cannot be changed in place. MTU, alias and MAC are not among it.
func differences(have, want *netlink.Vxlan) []string {
	var out []string
	note := func(what string, h, w any) {
		if h != w {
			out = append(out, fmt.Sprintf("%s is %v, want %v", what, h, w))
		}
	}
	note("VNI", have.VxlanId, want.VxlanId)
	note("underlay link", have.VtepDevIndex, want.VtepDevIndex)
	note("local address", ipText(have.SrcAddr), ipText(want.SrcAddr))
	note("group", ipText(have.Group), ipText(want.Group))
	note("port", have.Port, want.Port)
	note("learning", have.Learning, want.Learning)
	note("gbp", have.GBP, want.GBP)
	note("l2miss", have.L2miss, want.L2miss)
	note("external", have.FlowBased, want.FlowBased)
	return slices.Clip(out)
}

func ipText(ip net.IP) string {
	a, ok := netip.AddrFromSlice(ip)
	if !ok || a.IsUnspecified() {
		return "none"
	}
	return a.Unmap().String()
}

func isUp(a *netlink.LinkAttrs) bool { return a.Flags&net.FlagUp != 0 }

// linkMAC returns the device's MAC, or the zero MAC where it has none.
func linkMAC(l netlink.Link) encap.MAC {
	var m encap.MAC
	if h := l.Attrs().HardwareAddr; len(h) == len(m) {
		copy(m[:], h)
	}
	return m
}
