package kernel

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// The netlink messages of the objects that a peer needs, written and read by
// hand: the netlink library does not support nexthop objects, and needs one system call and
// several allocations per object. Integers are in host order (netlink(7)).

var native = binary.NativeEndian

// rtaNHID is RTA_NH_ID of linux/rtnetlink.h (kernel 5.3).
const rtaNHID = 30

// begin appends a netlink header and the family header that follows it. The
// length is set by finish, the sequence number by the connection.
func begin(b []byte, typ, flags uint16, family []byte) []byte {
	b = native.AppendUint32(b, 0)
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence, port
	return append(b, family...)
}

// finish sets the length of the message that starts at b[start].
func finish(b []byte, start int) []byte {
	native.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

func attr(b []byte, typ uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

func attrUint32(b []byte, typ uint16, v uint32) []byte {
	var d [4]byte
	native.PutUint32(d[:], v)
	return attr(b, typ, d[:])
}

func attrAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		d := a.As4()
		return attr(b, typ, d[:])
	}
	d := a.As16()
	return attr(b, typ, d[:])
}

// attrs yields the attributes (type without flag bits, value) and stops at the
// first that does not fit.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n := int(native.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			if !yield(native.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// fixed splits a message into its family header of n bytes and its attributes;
// both are nil if it is too short.
func fixed(b []byte, n int) (header, rest []byte) {
	if len(b) < n {
		return nil, nil
	}
	return b[:n], b[n:]
}

func toUint32(d []byte) uint32 {
	if len(d) < 4 {
		return 0
	}
	return native.Uint32(d)
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

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
	b = begin(b, typ, flags, ndmsg(family(at.addr), at.link, unix.NUD_PERMANENT, 0))
	b = attrAddr(b, unix.NDA_DST, at.addr)
	if typ == unix.RTM_NEWNEIGH {
		b = attr(b, unix.NDA_LLADDR, mac[:])
	}
	return finish(b, start)
}

// fdbMessage appends a request about one forwarding entry of a vxlan device.
// NTF_SELF means the device's own entry, not that of a bridge above it.
func fdbMessage(b []byte, typ, flags uint16, e fdbEntry) []byte {
	start := len(b)
	b = begin(b, typ, flags, ndmsg(unix.AF_BRIDGE, e.link, unix.NUD_PERMANENT, unix.NTF_SELF))
	b = attr(b, unix.NDA_LLADDR, e.mac[:])
	b = attrAddr(b, unix.NDA_DST, e.dst)
	return finish(b, start)
}

// changeVxlanMessage appends a request to change a vxlan device. The driver refuses all other
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
	data := attrUint32(nil, nl.IFLA_VXLAN_LINK, uint32(v.VtepDevIndex))
	data = attr(attrAddr(data, typ, local), nl.IFLA_VXLAN_LEARNING, learning)
	info := attr(nil, nl.IFLA_INFO_KIND, []byte("vxlan"))
	info = attr(info, nl.IFLA_INFO_DATA, data)
	start := len(b)
	header := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(header[4:], uint32(index))
	b = begin(b, unix.RTM_NEWLINK, 0, header)
	return finish(attr(b, unix.IFLA_LINKINFO, info), start)
}

// newNexthopMessage appends a request for a nexthop object. The kernel chooses its id, and
// returns it because of NLM_F_ECHO.
func newNexthopMessage(b []byte, gateway place) []byte {
	start := len(b)
	h := make([]byte, unix.SizeofNhmsg)
	h[0], h[2] = family(gateway.addr), rtnl.RouteProtocol
	native.PutUint32(h[4:], unix.RTNH_F_ONLINK)
	b = begin(b, unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO, h)
	b = attrUint32(b, unix.NHA_OIF, uint32(gateway.link))
	b = attrAddr(b, unix.NHA_GATEWAY, gateway.addr)
	return finish(b, start)
}

func delNexthopMessage(b []byte, id uint32) []byte {
	start := len(b)
	b = begin(b, unix.RTM_DELNEXTHOP, 0, make([]byte, unix.SizeofNhmsg))
	return finish(attrUint32(b, unix.NHA_ID, id), start)
}

// routeMessage appends a request about a route of the main table: through a
// nexthop object if r names one, else through its gateway, on link.
func routeMessage(b []byte, typ, flags uint16, k routeKey, r route) []byte {
	start := len(b)
	h := make([]byte, unix.SizeofRtMsg)
	h[0], h[1] = family(k.dst.Addr()), uint8(k.dst.Bits())
	h[4], h[5], h[6] = unix.RT_TABLE_MAIN, r.protocol, unix.RT_SCOPE_UNIVERSE
	if typ == unix.RTM_NEWROUTE {
		h[7] = unix.RTN_UNICAST
	} else {
		h[6] = unix.RT_SCOPE_NOWHERE // matches any scope
	}
	if r.nexthop == 0 && r.onlink {
		native.PutUint32(h[8:], unix.RTNH_F_ONLINK)
	}
	b = begin(b, typ, flags, h)
	b = attrAddr(b, unix.RTA_DST, k.dst.Addr())
	if k.metric != 0 {
		b = attrUint32(b, unix.RTA_PRIORITY, k.metric)
	}
	if r.nexthop != 0 {
		return finish(attrUint32(b, rtaNHID, r.nexthop), start)
	}
	if r.link > 0 {
		b = attrUint32(b, unix.RTA_OIF, uint32(r.link))
	}
	if r.gateway.IsValid() {
		b = attrAddr(b, unix.RTA_GATEWAY, r.gateway)
	}
	return finish(b, start)
}
