package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// The netlink messages of the objects that a peer needs. Integers are in host order (netlink(7)).

var native = binary.NativeEndian

// rtaNHID is RTA_NH_ID of linux/rtnetlink.h (kernel 5.3).
const rtaNHID = 30

// ndmsg returns struct ndmsg of linux/neighbour.h.
func ndmsg(family uint8, index int, state uint16, flags uint8) []byte {
	b := make([]byte, unix.SizeofNdMsg)
	b[0] = family
	native.PutUint32(b[4:], uint32(index))
	native.PutUint16(b[8:], state)
	b[10] = flags
	return b
}

// neighMessage appends a request about the permanent neighbour entry of an
// overlay address; the MAC is left out of a deletion.
func neighMessage(b []byte, typ, flags uint16, at place, mac encap.MAC) []byte {
	start := len(b)
	b = rtmsg.Begin(b, typ, flags, ndmsg(rtmsg.Family(at.addr), at.link, unix.NUD_PERMANENT, 0))
	b = rtmsg.AttrAddr(b, unix.NDA_DST, at.addr)
	if typ == unix.RTM_NEWNEIGH {
		b = rtmsg.Attr(b, unix.NDA_LLADDR, mac[:])
	}
	return rtmsg.Finish(b, start)
}

// fdbMessage appends a request about one forwarding entry of a vxlan device.
// NTF_SELF means the device's own entry, not that of a bridge above it.
func fdbMessage(b []byte, typ, flags uint16, e fdbEntry) []byte {
	start := len(b)
	b = rtmsg.Begin(b, typ, flags, ndmsg(unix.AF_BRIDGE, e.link, unix.NUD_PERMANENT, unix.NTF_SELF))
	b = rtmsg.Attr(b, unix.NDA_LLADDR, e.mac[:])
	b = rtmsg.AttrAddr(b, unix.NDA_DST, e.dst)
	return rtmsg.Finish(b, start)
}

// renewMessage appends a request that replaces an entry of the FDB by one that names an interface; 0: none.
func renewMessage(b []byte, n neighbour, via int) []byte {
	start := len(b)
	b = rtmsg.Begin(b, unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE, ndmsg(unix.AF_BRIDGE, n.index, n.state, unix.NTF_SELF))
	b = rtmsg.AttrAddr(rtmsg.Attr(b, unix.NDA_LLADDR, n.mac[:]), unix.NDA_DST, n.dst)
	if via != 0 {
		b = rtmsg.AttrUint32(b, unix.NDA_IFINDEX, uint32(via))
	}
	return rtmsg.Finish(b, start)
}

// changeVxlanMessage appends a request to change a vxlan device. The driver refuses most other
// attributes here, even if they are unchanged.
func changeVxlanMessage(b []byte, index int, v *netlink.Vxlan) []byte {
	learning := []byte{0}
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	if v.Learning {
		learning[0] = 1
	}
	typ := uint16(nl.IFLA_VXLAN_LOCAL)
	if local.Is6() {
		typ = nl.IFLA_VXLAN_LOCAL6
	}
	data := rtmsg.AttrUint32(nil, nl.IFLA_VXLAN_LINK, uint32(v.VtepDevIndex))
	data = rtmsg.Attr(rtmsg.AttrAddr(data, typ, local), nl.IFLA_VXLAN_LEARNING, learning)
	data = rtmsg.Attr(data, nl.IFLA_VXLAN_TTL, []byte{uint8(v.TTL)})
	info := rtmsg.Attr(nil, nl.IFLA_INFO_KIND, []byte("vxlan"))
	info = rtmsg.Attr(info, nl.IFLA_INFO_DATA, data)
	start := len(b)
	header := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(header[4:], uint32(index))
	b = rtmsg.Begin(b, unix.RTM_NEWLINK, 0, header)
	return rtmsg.Finish(rtmsg.Attr(b, unix.IFLA_LINKINFO, info), start)
}

// newNexthopMessage appends a request for a nexthop object. The kernel chooses its id, and
// returns it because of NLM_F_ECHO.
func newNexthopMessage(b []byte, gateway place) []byte {
	start := len(b)
	h := make([]byte, unix.SizeofNhmsg)
	h[0], h[2] = rtmsg.Family(gateway.addr), rtnl.RouteProtocol
	native.PutUint32(h[4:], unix.RTNH_F_ONLINK)
	b = rtmsg.Begin(b, unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO, h)
	b = rtmsg.AttrUint32(b, unix.NHA_OIF, uint32(gateway.link))
	b = rtmsg.AttrAddr(b, unix.NHA_GATEWAY, gateway.addr)
	return rtmsg.Finish(b, start)
}

func delNexthopMessage(b []byte, id uint32) []byte {
	start := len(b)
	b = rtmsg.Begin(b, unix.RTM_DELNEXTHOP, 0, make([]byte, unix.SizeofNhmsg))
	return rtmsg.Finish(rtmsg.AttrUint32(b, unix.NHA_ID, id), start)
}

// routeMessage appends a request about a route of the main table: through a
// nexthop object if r names one, else through its gateway, on link.
func routeMessage(b []byte, typ, flags uint16, k routeKey, r route) []byte {
	start := len(b)
	h := make([]byte, unix.SizeofRtMsg)
	h[0], h[1] = rtmsg.Family(k.dst.Addr()), uint8(k.dst.Bits())
	h[4], h[5], h[6] = unix.RT_TABLE_MAIN, r.protocol, unix.RT_SCOPE_UNIVERSE
	if typ == unix.RTM_NEWROUTE {
		h[7] = unix.RTN_UNICAST
	} else {
		h[6] = unix.RT_SCOPE_NOWHERE // matches any scope
	}
	if r.nexthop == 0 && r.onlink {
		native.PutUint32(h[8:], unix.RTNH_F_ONLINK)
	}
	b = rtmsg.Begin(b, typ, flags, h)
	b = rtmsg.AttrAddr(b, unix.RTA_DST, k.dst.Addr())
	if k.metric != 0 {
		b = rtmsg.AttrUint32(b, unix.RTA_PRIORITY, k.metric)
	}
	if r.nexthop != 0 {
		return rtmsg.Finish(rtmsg.AttrUint32(b, rtaNHID, r.nexthop), start)
	}
	if r.link > 0 {
		b = rtmsg.AttrUint32(b, unix.RTA_OIF, uint32(r.link))
	}
	if r.gateway.IsValid() {
		b = rtmsg.AttrAddr(b, unix.RTA_GATEWAY, r.gateway)
	}
	return rtmsg.Finish(b, start)
}
