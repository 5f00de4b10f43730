package guard

import (
	"context"
	"errors"
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

// TestUserToItsOwnHost: a user of a host sends it no datagram of the overlay, also not behind one of another network. If a process forwards, which takes all that comes, the user
// cannot send there at all.
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
				hide := func(name string, uid, mark int, src netip.Addr, why dataplane.Drop, refused error) {
					w.expect(name, a, why, func(text []byte) {
						d := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
						if err := sendAs(a.NS, uid, mark, src, netip.AddrPortFrom(a.addr, testPort), a.frame(99, d[22:]), d); !errors.Is(err, refused) {
							t.Errorf("%s: %v", name, err)
						}
					})
				}
				why, refused := dataplane.DropUnknownVTEP, error(nil)
				if a.sockets != nil {
					hide("by the loopback device", 0, DefaultMark, a.addr, why, nil)
					why, refused = dataplane.DropEgress, unix.EPERM
				}
				hide("as the host", aUser, 0, a.addr, why, refused)
				if w.v6 {
					hide("as a VTEP", aUser, 0, b.addr, why, refused)
				}
				w.check(100)
			})
		})
	}
}

// TestUsersSources: no user without rights sends in the name of a pod over IPv6, wherever it is. Addresses of this host are free, and so is every one for root and for the mark.
func TestUsersSources(t *testing.T) {
	for name, join := range joins() {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				w.config = func(c *Config) { c.Direct = w.v6 }
				join(w)
				a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
				to := map[string]netip.Addr{"a pod": a.podAddr(true), "the host": a.overlay(true), "another host's pod": c.podAddr(true)}
				if w.v6 {
					a.Run("ip", "route", "add", netip.PrefixFrom(c.podAddr(true), 128).String(), "via", c.addr.String()) // a direct one
				}
				for at, dst := range to {
					for name, src := range map[string]netip.Addr{"another host's pod": b.podAddr(true), "another host": b.overlay(true), "a pod": a.podAddr(true).Next(), "nobody": netip.MustParseAddr("fd42:0:0:99::1")} {
						w.expect("as "+name+" to "+at, a, dataplane.DropBadSource, func(text []byte) {
							if err := sendAs(a.NS, aUser, 0, src, netip.AddrPortFrom(dst, receivePort), text); !errors.Is(err, unix.EPERM) {
								t.Errorf("%s: %v", text, err)
							}
						})
					}
				}
				for _, free := range []struct {
					name      string
					uid, mark int
					src, dst  netip.Addr
				}{
					{"anycast to a pod", aUser, 0, a.overlay(true), a.podAddr(true)},
					{"anycast to another host", aUser, 0, a.overlay(true), b.overlay(true)},
					{"the gateway to a pod", aUser, 0, a.overlay(true).Next(), a.podAddr(true)},
					{"the gateway to another host's pod", aUser, 0, a.overlay(true).Next(), b.podAddr(true)},
					{"IPv4 to another host's pod", aUser, 0, a.overlay(false), b.podAddr(false)},
					{"the underlay", aUser, 0, a.addr, b.addr},
					{"root to a pod", 0, 0, b.podAddr(true), a.podAddr(true)},
					{"the mark to a pod", aUser, DefaultMark, b.podAddr(true), a.podAddr(true)},
				} {
					if err := sendAs(a.NS, free.uid, free.mark, free.src, netip.AddrPortFrom(free.dst, receivePort), []byte(free.name)); err != nil {
						t.Errorf("%s: %v", free.name, err)
					}
					eventually(t, free.name, func() bool { return w.place(free.name) != "" })
				}
				w.check(100)
			})
		})
	}
}
