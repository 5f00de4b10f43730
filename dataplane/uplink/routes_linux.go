package uplink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// route is what the kernel's routes say about one destination.
type route struct {
	link    int
	gateway netip.Addr // invalid: the destination is on the link
	mtu     int        // of the route; 0: that of the link
}

// The reasons why a destination is left to the sockets.
var (
	errNotPlain = errors.New("its route is not to one next hop on a link")
	errNoLink   = errors.New("the link of its route is down")
	errCuts     = errors.New("the kernel would cut superpackets for its link, which is no faster than to do so here for a peer that has UDP sockets")
)

const fibMatch = unix.RTM_F_FIB_MATCH // the configured route, without what ICMP says about it, because anybody can forge ICMP

// ask asks the kernel for the routes to the destinations. If that failed, it has not answered.
func (u *Uplink) ask(to []netip.Addr) (routes []route, errs []error, failed bool) {
	routes, errs = make([]route, len(to)), make([]error, len(to))
	err := u.conn.Transact(context.Background(), len(to), func(i int, b []byte) []byte {
		family := make([]byte, unix.SizeofRtMsg)
		family[0], family[1] = rtmsg.Family(to[i]), byte(to[i].BitLen())
		family[2] = byte(u.cfg.Local.BitLen())
		binary.NativeEndian.PutUint32(family[8:], fibMatch)
		start := len(b)
		b = rtmsg.Begin(b, unix.RTM_GETROUTE, 0, family)
		b = rtmsg.AttrAddr(b, unix.RTA_DST, to[i])
		b = rtmsg.AttrAddr(b, unix.RTA_SRC, u.cfg.Local)
		b = rtmsg.AttrUint32(b, unix.RTA_MARK, u.cfg.Mark)
		b = rtmsg.Attr(b, unix.RTA_IP_PROTO, []byte{unix.IPPROTO_UDP})
		b = rtmsg.Attr(b, unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, u.cfg.Port))
		return rtmsg.Finish(b, start)
	}, func(i int, reply []byte, err error) {
		if errs[i] = err; err == nil {
			routes[i], errs[i] = parseRoute(reply, to[i])
		}
	})
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
	return routes, errs, err != nil
}

// parseRoute reads the body of RTM_NEWROUTE.
func parseRoute(body []byte, to netip.Addr) (r route, err error) {
	h, attrs := rtmsg.Split(body, unix.SizeofRtMsg)
	if h == nil || h[7] != unix.RTN_UNICAST {
		return r, errNotPlain
	}
	for typ, v := range rtmsg.Attrs(attrs) {
		switch typ {
		case unix.RTA_OIF:
			r.link = int(rtmsg.Uint32(v))
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(v)
		case unix.RTA_MULTIPATH, unix.RTA_VIA, unix.RTA_ENCAP:
			return r, errNotPlain
		case unix.RTA_METRICS:
			for metric, v := range rtmsg.Attrs(v) {
				if metric == unix.RTAX_MTU {
					r.mtu = int(rtmsg.Uint32(v))
				}
			}
		}
	}
	if r.link == 0 || r.gateway.IsValid() && r.gateway.Is4() != to.Is4() {
		return r, errNotPlain
	}
	return r, nil
}

// link has the properties of a network device that matter here.
type link struct {
	name, kind string
	index, mtu int
	flags      uint32 // IFF_UP and so on
}

// linkOf asks the kernel for a device, by index or name.
func linkOf(c *rtmsg.Conn, index int, name string) (l link, err error) {
	err = errors.Join(c.Transact(context.Background(), 1, func(_ int, b []byte) []byte {
		family := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(family[4:], uint32(index))
		start := len(b)
		b = rtmsg.Begin(b, unix.RTM_GETLINK, 0, family)
		if name != "" {
			b = rtmsg.Attr(b, unix.IFLA_IFNAME, append([]byte(name), 0))
		}
		return rtmsg.Finish(b, start)
	}, func(_ int, reply []byte, e error) {
		h, attrs := rtmsg.Split(reply, unix.SizeofIfInfomsg)
		if err = e; e != nil || h == nil {
			return
		}
		l.index, l.flags = int(binary.NativeEndian.Uint32(h[4:])), binary.NativeEndian.Uint32(h[8:])
		for typ, v := range rtmsg.Attrs(attrs) {
			switch typ {
			case unix.IFLA_MTU:
				l.mtu = int(rtmsg.Uint32(v))
			case unix.IFLA_IFNAME:
				l.name = strings.TrimRight(string(v), "\x00")
			case unix.IFLA_LINKINFO:
				for typ, v := range rtmsg.Attrs(v) {
					if typ == unix.IFLA_INFO_KIND {
						l.kind = strings.TrimRight(string(v), "\x00")
					}
				}
			}
		}
	}), err)
	return l, err
}

// findLink returns what it finds out about a link. One that is not up is an error.
func (u *Uplink) findLink(index int) (f linkFound) {
	l, err := linkOf(u.conn, index, "")
	if err == nil && (l.flags&unix.IFF_UP == 0 || l.flags&unix.IFF_LOOPBACK != 0) {
		err = errNoLink
	}
	// A bridge says that it takes superpackets of a tunnel, but has no hw_enc_features: the kernel cuts them for it.
	whole := l.kind != "bridge" && u.features.takesWhole(l.name)
	return linkFound{mtu: l.mtu, cuts: err == nil && !u.cfg.Always && !whole, err: err}
}

// policies asks for the policies of IPsec. Its socket is opened once.
type policies struct{ fd int }

func openPolicies() (policies, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_XFRM)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return policies{-1}, nil // the kernel has none
	case err != nil:
		return policies{-1}, fmt.Errorf("ask for IPsec policies: %w", err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	return policies{fd}, nil
}

func (p policies) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// From linux/xfrm.h. The attribute is struct xfrmu_spdinfo; its second number counts the outbound policies.
const (
	getPolicyInfo = 0x25 // XFRM_MSG_GETSPDINFO
	policyInfo    = 1    // XFRMA_SPD_INFO
	getDefault    = 0x28 // XFRM_MSG_GETDEFAULT
	blocks        = 1    // XFRM_USERPOLICY_BLOCK
)

// out reports whether there are outbound policies, or the default one is to block.
func (p policies) out() (any bool, err error) {
	if p.fd < 0 {
		return false, nil
	}
	b, err := p.ask(getPolicyInfo)
	if err != nil {
		return false, fmt.Errorf("ask for IPsec policies: %w", err)
	}
	for typ, v := range rtmsg.Attrs(b[4:]) {
		if typ == policyInfo && len(v) >= 8 && binary.NativeEndian.Uint32(v[4:]) > 0 {
			return true, nil
		}
	}
	b, err = p.ask(getDefault)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.15, which has no default policy
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the default IPsec policy: %w", err)
	}
	return b[2] == blocks, nil // struct xfrm_userpolicy_default: in, forward, out
}

// ask returns the body of the answer to a request of four bytes, at least as many.
func (p policies) ask(typ uint16) ([]byte, error) {
	m := rtmsg.Finish(rtmsg.Begin(nil, typ, 0, make([]byte, 4)), 0)
	if err := unix.Sendto(p.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(p.fd, b, 0)
	switch {
	case err != nil:
		return nil, err
	case n < unix.SizeofNlMsghdr+4:
		return nil, unix.EPROTO
	case binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR:
		return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])))
	}
	return b[unix.SizeofNlMsghdr:n], nil
}
