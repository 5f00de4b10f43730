package cni

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// defaultBridge is the plugin bridge's own, if the config names none.
const defaultBridge = "cni0"

// moves lets the delegate replace the address of its bridge if that is left of another subnet, such as that of a Node that was made again, and no
// pod is on the bridge. Otherwise the plugin bridge makes no pod until somebody deletes the bridge. Pods that are on it would lose their gateway.
// A bridge that the config names may be somebody else's.
func (o object) moves(e env) {
	_, named := o["bridge"]
	if o.text("type") == defaultDelegate && !named && isOfAnother(defaultBridge, e.subnets) && !hasPorts(defaultBridge) {
		o.lacks("forceAddress", true)
	}
}

// isOfAnother reports whether an interface has an address with another prefix than these subnets.
func isOfAnother(name string, subnets []netip.Prefix) bool {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addrs, err := i.Addrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().IsGlobalUnicast() && !slices.Contains(subnets, p.Masked())
	})
}

const iflaMaster = 10 // IFLA_MASTER of linux/if_link.h

// hasPorts reports whether an interface is on a bridge, and also if that cannot be told. /sys/class/net may be of another network namespace.
func hasPorts(bridge string) bool {
	i, err := net.InterfaceByName(bridge)
	if err != nil {
		return true
	}
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return true
	}
	links, err := syscall.ParseNetlinkMessage(dump)
	return err != nil || slices.ContainsFunc(links, func(m syscall.NetlinkMessage) bool {
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		return m.Header.Type == syscall.RTM_NEWLINK && (err != nil || slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
			return a.Attr.Type == iflaMaster && len(a.Value) == 4 && int(binary.NativeEndian.Uint32(a.Value)) == i.Index
		}))
	})
}
