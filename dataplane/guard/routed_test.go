package guard

import (
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

// sendRouted sends datagrams of equal size as one superpacket. A routing header sends it to the address via first, and to dst from there. Every user may do so.
func sendRouted(ns *netnstest.NS, via, dst netip.Addr, datagrams ...[]byte) error {
	return ns.Do(func() error {
		if _, err := unix.SetfsuidRetUid(aUser); err != nil { // of this thread, which is thrown away
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(datagrams[0])),
			unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_RTHDR, string(segments(0, via, netip.IPv6Unspecified()))))
		if err != nil {
			return err
		}
		return unix.Sendto(fd, slices.Concat(datagrams...), 0, &unix.SockaddrInet6{Addr: dst.As16(), Port: testPort})
	})
}

// TestRouted: users and pods cannot use a routing header of IPv6 to send to a VTEP through a router.
func TestRouted(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			join(w)
			b, a := w.hosts[0], w.hosts[1]
			for _, ns := range []*netnstest.NS{a.NS, w.stranger} {
				ns.Run("sysctl", "-wq", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf.eth0.seg6_enabled=1")
			}
			b.Run("ip", "link", "set", "eth0", "gso_max_segs", "1") // as by a NIC that splits superpackets
			w.expect("a user, behind another network's", b, dataplane.DropEgress, func(text []byte) {
				d := a.frame(1, packet(b.podAddr(true), a.podAddr(true), 1, receivePort, text))
				if err := sendRouted(b.NS, w.strange, a.addr, a.frame(99, d[22:]), d); !errors.Is(err, unix.EPERM) {
					t.Errorf("sent: %v", err)
				}
			})
			vtep := w.hosts[2]
			for name, src := range map[string]netip.Addr{"itself": b.podAddr(true), "a VTEP": vtep.addr} {
				w.expect(fmt.Sprintf("a pod as %s", name), b, dataplane.DropEgress, func(text []byte) {
					p := packet(src, a.addr, 1, testPort, a.frame(1, packet(vtep.podAddr(true), a.podAddr(true), 1, receivePort, text)))
					h := segments(p[6], w.strange, a.addr)
					copy(p[24:], w.strange.AsSlice())
					p[5], p[6] = p[5]+byte(len(h)), unix.IPPROTO_ROUTING
					sendRaw(b.pod, slices.Insert(p, 40, h...))
				})
			}
			w.check(100)
		})
	}
}
