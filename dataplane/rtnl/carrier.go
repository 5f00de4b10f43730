package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// HasCarrier reports whether a link that is up has its carrier. On a device without one the kernel uses no routes, and removes nexthops.
func HasCarrier(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 }

// raise gives a link its carrier back. It has lost it because somebody set protodown, or, on a TUN device, the carrier itself. What a
// device does not have cannot be why. Nor can a TUN device that nobody is attached to have a carrier (EPERM).
func (c *Conn) raise(l netlink.Link) error {
	a := l.Attrs()
	for _, s := range []struct {
		attr  int
		value uint8
		what  string
	}{{unix.IFLA_PROTO_DOWN, 0, "protodown of %s off"}, {unix.IFLA_CARRIER, 1, "carrier of %s on"}} {
		r := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
		r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(a.Index)}})
		r.AddData(nl.NewRtAttr(s.attr, []byte{s.value}))
		_, err := r.Execute(unix.NETLINK_ROUTE, 0)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) && s.attr == unix.IFLA_CARRIER {
			continue
		}
		if err != nil {
			return fmt.Errorf("set "+s.what+": %w", a.Name, err)
		}
		if now, err := c.LinkByIndex(a.Index); err == nil && HasCarrier(now) {
			c.changed(dataplane.OpReplace, KindDevice, a.Name, "no carrier", "carrier")
			return nil
		}
	}
	return nil
}
