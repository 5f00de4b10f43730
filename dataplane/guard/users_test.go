package guard

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// aUser is somebody without capabilities.
const aUser = 65534

// sendAs sends datagrams of equal size at once from a socket of that user, with any source: for IPv6 everybody may have one that the host has not.
func sendAs(ns *netnstest.NS, uid int, mark int, src netip.Addr, dst netip.AddrPort, segments ...[]byte) error {
	return ns.Do(func() error {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), Control: func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) {
				if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err == nil && src.Is6() {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
				}
				if err == nil && len(segments) > 1 {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(segments[0]))
				}
			})
			return err
		}}
		if _, err := unix.SetfsuidRetUid(uid); err != nil { // of this thread
			return err
		}
		c, err := d.DialContext(context.Background(), "udp", dst.String())
		if _, back := unix.SetfsuidRetUid(0); err != nil || back != nil {
			return err
		}
		defer c.Close()
		var all []byte
		for _, s := range segments {
			all = append(all, s...)
		}
		_, err = c.Write(all)
		return err
	})
}

// TestUserToItsOwnHost: a user of a host sends it no datagram of the overlay, also not behind one of another network.
func TestUserToItsOwnHost(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = func(c *Config) {
					if !w.v6 { // the kernel lets no user have the address of a VTEP
						c.Check, c.AnyPeerFrom = dataplane.SourceInner, prefixes("192.0.2.0/24")
					}
				}
				join(w)
				a, b := w.hosts[0], w.hosts[1]
				from := map[string]netip.Addr{"as the host": a.addr}
				if w.v6 {
					from["as a VTEP"] = b.addr
				}
				for name, src := range from {
					w.expect(name, a, dataplane.DropUnknownVTEP, func(text []byte) {
						d := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
						if err := sendAs(a.NS, aUser, 0, src, netip.AddrPortFrom(a.addr, testPort), a.frame(99, d[22:]), d); err != nil {
							t.Error(err)
						}
					})
				}
				w.check(100)
			})
		})
	}
}
