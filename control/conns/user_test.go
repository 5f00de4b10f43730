package conns

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// connectAs makes a connection of a user to an address of IPv6, which may be a mapped one, or of IPv4.
func connectAs(t *testing.T, user int, from, to netip.AddrPort) (fd int, err error) {
	t.Helper()
	family, at := unix.AF_INET6, func(a netip.AddrPort) unix.Sockaddr {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	if to.Addr().Is4() {
		family, at = unix.AF_INET, func(a netip.AddrPort) unix.Sockaddr {
			return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
		}
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return fd, err
	}
	err = unix.Fchown(fd, user, user)
	if from.IsValid() && err == nil {
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, at(from)))
	}
	return fd, errors.Join(err, unix.Connect(fd, at(to)))
}

// TestUserOf: the user of a client on this host is known by all kinds of addresses, also if root has a socket with the same ports; once the client has closed its socket, it is nobody's.
func TestUserOf(t *testing.T) {
	// Not beside others: a process that they start has a closed socket until it runs its program.
	netnstest.RequireRoot(t)
	const nobody = 65534
	h := netnstest.New(t)
	h.Addr("lo", "192.0.2.2/32")
	for _, c := range []struct {
		name, from, listen, to string
	}{
		{"IPv4", "127.0.0.1:901", "127.0.0.1:900", "127.0.0.1:900"},
		{"IPv4 of another address", "192.0.2.2:901", "127.0.0.1:900", "127.0.0.1:900"},
		{"IPv4, mapped", "[::ffff:127.0.0.1]:901", "127.0.0.1:900", "[::ffff:127.0.0.1]:900"},
		{"IPv6", "[::1]:901", "[::1]:900", "[::1]:900"},
	} {
		from, to := netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)
		h.Must(func() error {
			l, err := net.Listen("tcp", c.listen)
			if err != nil {
				return err
			}
			defer l.Close()
			other, err := net.Listen("tcp", c.from) // root's; it goes before the client comes
			if err != nil {
				return err
			}
			ends := [2]netip.AddrPort{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), netip.AddrPortFrom(to.Addr().Unmap(), to.Port())}
			if uid, err := userOf(ends[0], ends[1]); !errors.Is(err, unix.ENOENT) {
				t.Errorf("%s: a listener: %d, %v", c.name, uid, err)
			}
			other.Close()
			if to.Addr().Unmap().Is4() {
				beside, err := connectAs(t, 0, netip.MustParseAddrPort("127.0.0.3:901"), ends[1])
				if err != nil {
					return err
				}
				defer unix.Close(beside)
				b, err := l.Accept()
				if err != nil {
					return err
				}
				defer b.Close()
			}
			for _, user := range []int{nobody, 0} {
				fd, err := connectAs(t, user, from, to)
				if err != nil {
					return err
				}
				conn, err := l.Accept()
				if err != nil {
					return err
				}
				defer conn.Close()
				if uid, err := UserOf(conn.(*net.TCPConn)); err != nil || int(uid) != user {
					t.Errorf("%s: user %d: got %d, %v", c.name, user, uid, err)
				}
				if _, err := unix.Write(fd, []byte("PRI")); err != nil {
					return err
				}
				if user == 0 { // the port is free at once
					err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
				}
				unix.Close(fd)
				if uid, e := userOf(ends[0], ends[1]); !errors.Is(e, unix.ENOENT) {
					t.Errorf("%s: closed: %d, %v", c.name, uid, e)
				}
				if uid, e := UserOf(conn.(*net.TCPConn)); !errors.Is(e, net.ErrClosed) {
					t.Errorf("%s: closed: %d, %v", c.name, uid, e)
				}
				if err != nil {
					return err
				}
				from = netip.AddrPortFrom(from.Addr(), from.Port()+1)
				ends[0] = netip.AddrPortFrom(ends[0].Addr(), from.Port())
			}
			return nil
		})
	}
}
