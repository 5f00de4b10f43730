package fit

import (
	"fmt"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/encap"
)

// CheckMTU refuses an overlay whose packets are smaller than every link must carry:
// RFC 791 section 3.2, RFC 8200 section 5.
func CheckMTU(c control.Network, iface underlay.Interface) error {
	version, least := 4, 68
	if c.EnableIPv6 {
		version, least = 6, 1280
	}
	if mtu := MTU(c, iface); mtu < least {
		return fmt.Errorf("network config: EnableIPv%d: the overlay has an MTU of %d here, and IPv%d needs %d: the MTU of %s is %d, Backend.MTU is %d",
			version, mtu, version, least, iface.Name, iface.MTU, c.Backend.MTU)
	}
	return nil
}

// longest is what an IPv4 packet may have, in bytes: a loopback device has an MTU of one more.
const longest = 65535

// MTU returns how long an inner packet may be, in bytes: the configured underlay MTU, at most
// that of the interface and of an IP packet, less the encapsulation of the family that needs most.
func MTU(c control.Network, iface underlay.Interface) int {
	mtu := iface.MTU
	if !c.Backend.IsVXLAN() { // nothing is encapsulated
		return mtu
	}
	mtu = min(mtu, longest)
	if c.Backend.MTU > 0 {
		mtu = min(mtu, c.Backend.MTU)
	}
	overhead := 0
	for _, u := range iface.Underlays(c.EnableIPv4, c.EnableIPv6) {
		overhead = max(overhead, encap.Overhead(u.Local))
	}
	return mtu - overhead
}
