package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// segments is a routing header (RFC 8754) to a router first and to a destination then. The kernel fills in the latter for a socket.
func segments(next byte, via, dst netip.Addr) []byte {
	return slices.Concat([]byte{next, 4, 4, 1, 1, 0, 0, 0}, dst.AsSlice(), via.AsSlice())
}

// sourceRoute is the option of IPv4 (RFC 791) that says the same, as a socket takes it, and as it is in a packet to the address via.
func sourceRoute(a netip.Addr) []byte {
	return slices.Concat([]byte{131, 7, 4}, a.AsSlice(), []byte{1})
}

// sendRouted sends datagrams of equal size as one superpacket. A source route sends it to the address via first, and to dst from there. Every user may do so.
func sendRouted(ns *netnstest.NS, via, dst netip.Addr, datagrams ...[]byte) error {
	return ns.Do(func() error {
		if _, err := unix.SetfsuidRetUid(aUser); err != nil { // of this thread, which is thrown away
			return err
		}
		family, level, option, route, to := unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RTHDR, segments(0, via, netip.IPv6Unspecified()), unix.Sockaddr(&unix.SockaddrInet6{Addr: dst.As16(), Port: testPort})
		if dst.Is4() {
			family, level, option, route, to = unix.AF_INET, unix.IPPROTO_IP, unix.IP_OPTIONS, sourceRoute(via), &unix.SockaddrInet4{Addr: dst.As4(), Port: testPort}
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(datagrams[0])), unix.SetsockoptString(fd, level, option, string(route)))
		if err != nil {
			return err
		}
		return unix.Sendto(fd, slices.Concat(datagrams...), 0, to)
	})
}

// routed gives a packet a source route to the address via, and from there to where it goes.
func routed(p []byte, via netip.Addr) []byte {
	if via.Is4() {
		dst := netip.AddrFrom4([4]byte(p[16:20]))
		copy(p[16:], via.AsSlice())
		p = slices.Insert(p, 20, sourceRoute(dst)...)
		p[0] += 2
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[10:], 0)
		binary.BigEndian.PutUint16(p[10:], ^onesSum(p[:28], 0))
		return p
	}
	h := segments(p[6], via, netip.AddrFrom16([16]byte(p[24:40])))
	copy(p[24:], via.AsSlice())
	p[5], p[6] = p[5]+byte(len(h)), unix.IPPROTO_ROUTING
	return slices.Insert(p, 40, h...)
}

// TestRouted: users and pods cannot use a source route to send to a VTEP through a router, not even with a checksum that makes a datagram of it.
func TestRouted(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				join(w)
				b, a, vtep := w.hosts[0], w.hosts[1], w.hosts[2]
				for _, ns := range []*netnstest.NS{b.NS, a.NS, w.stranger} {
					ns.Run("sh", "-ec", "sysctl -wq net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.eth0.seg6_enabled=1 net.ipv4.ip_forward=1; "+
						"for d in all eth0 veth0; do [ ! -e /proc/sys/net/ipv4/conf/$d ] || sysctl -wq net.ipv4.conf.$d.accept_source_route=1 net.ipv4.conf.$d.rp_filter=0; done")
				}
				b.Run("ip", "link", "set", "eth0", "gso_max_segs", "1") // as by a NIC that splits superpackets
				w.expect("a user, behind another network's", b, dataplane.DropEgress, func(text []byte) {
					d := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
					if err := sendRouted(b.NS, w.strange, a.addr, a.frame(99, d[22:]), d); !errors.Is(err, unix.EPERM) {
						t.Errorf("sent: %v", err)
					}
				})
				for name, src := range map[string]netip.Addr{"itself": b.podAddr(w.v6), "a VTEP": vtep.addr} {
					for at, port := range map[string]uint16{"": testPort, ", to another port": 4000} { // which a checksum replaces
						w.expect(fmt.Sprint("a pod as ", name, at), b, dataplane.DropEgress, func(text []byte) {
							p := packet(src, a.addr, 1, port, a.frame(1, packet(vtep.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text)))
							sendRaw(b.pod, routed(p, w.strange))
						})
					}
				}
				w.check(100)
			})
		})
	}
}
