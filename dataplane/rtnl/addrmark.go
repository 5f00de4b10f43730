package rtnl

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ifaProto is IFA_PROTO of linux/if_addr.h (kernel 5.18): who added an address.
// The netlink library does not have it; older kernels do not look at it.
const ifaProto = 11

// request is a netlink message on a socket of the connection's network namespace.
func (c *Conn) request(typ, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(typ, flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.raw}
	return r
}

// addAddr adds an address, marked with [RouteProtocol].
func (c *Conn) addAddr(index int, p netip.Prefix) error {
	return c.putAddr(index, p, []byte{RouteProtocol})
}

// putAddr adds an address, or changes one that is there, with this mark; nil is not a mark, and makes
// it an address as others add it.
func (c *Conn) putAddr(index int, p netip.Prefix, mark []byte) error {
	msg := nl.NewIfAddrmsg(nl.FAMILY_V4)
	if p.Addr().Is6() {
		msg.Family = nl.FAMILY_V6
		if mark != nil {
			msg.Flags = unix.IFA_F_NODAD // nobody else can have it, and it must be usable at once
		}
	}
	msg.Index, msg.Prefixlen = uint32(index), uint8(p.Bits())
	r := c.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	r.AddData(msg)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()))
	if mark != nil {
		r.AddData(nl.NewRtAttr(ifaProto, mark))
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// markedAddrs returns the addresses of a link that addAddr added. Kernels before 5.18 do not
// remember it.
func (c *Conn) markedAddrs(index int) ([]netip.Prefix, error) {
	msgs, err := Retry(func() ([][]byte, error) {
		r := c.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		r.AddData(nl.NewIfAddrmsg(netlink.FAMILY_ALL))
		return r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	})
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, m := range msgs {
		if p, marked := parseAddr(m, index); marked {
			out = append(out, p)
		}
	}
	return out, nil
}

// parseAddr reads an address message; marked is false if it is about another link, or the
// address is not marked or malformed.
func parseAddr(m []byte, index int) (p netip.Prefix, marked bool) {
	if len(m) < unix.SizeofIfAddrmsg || len(m)%unix.NLMSG_ALIGNTO != 0 { // attributes are padded; netlink v1.3.1 relies on it
		return p, false
	}
	h := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
	if err != nil || h.Index != uint32(index) {
		return p, false
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS: // what addAddr adds has no other local address
			addr, _ := netip.AddrFromSlice(a.Value)
			p = netip.PrefixFrom(addr, int(h.Prefixlen))
		case ifaProto:
			marked = len(a.Value) == 1 && a.Value[0] == RouteProtocol
		}
	}
	return p, marked && p.IsValid()
}
