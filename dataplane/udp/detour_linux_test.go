package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDetour: what comes to the port reaches the socket of another one, with a checksum or without, whether anybody has
// the port or not. Then its holder gets it, and no rule is left. Another address of the host keeps what is its own.
func TestDetour(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		held, sum  bool
	}{
		{"IPv4", "127.0.0.1", false, true},
		{"IPv4, held", "127.0.0.1", true, true},
		{"IPv4 without checksum", "127.0.0.1", true, false},
		{"IPv6, held", "::1", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, at := netnstest.New(t), netip.AddrPortFrom(netip.MustParseAddr(c.addr), 8472)
			listen := func(addr netip.Addr, port uint16) (conn *net.UDPConn) {
				n.Must(func() (err error) {
					conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
					return err
				})
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			var holder, neighbour *net.UDPConn
			if at.Addr().Is4() { // all of 127.0.0.0/8 is the host's
				neighbour = listen(at.Addr().Next(), at.Port())
			}
			if c.held {
				holder = listen(at.Addr(), at.Port())
			}
			other := listen(at.Addr(), 0)
			var d *Detour
			n.Must(func() (err error) {
				d, err = OpenDetour(at, other.LocalAddr().(*net.UDPAddr).AddrPort().Port())
				return err
			})
			from := listen(at.Addr(), 0)
			if !c.sum {
				withoutChecksums(t, from)
			}
			send(t, from, at, "by the detour")
			expect(t, other, "by the detour")
			if neighbour != nil {
				send(t, from, neighbour.LocalAddr().(*net.UDPAddr).AddrPort(), "for another address")
				expect(t, neighbour, "for another address")
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if !c.held {
				holder = listen(at.Addr(), at.Port())
			}
			send(t, from, at, "straight")
			expect(t, holder, "straight")
			if out := n.Run("nft", "list", "ruleset"); strings.TrimSpace(out) != "" {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// TestDetourTwice: of one port there is one detour.
func TestDetourTwice(t *testing.T) {
	n := netnstest.New(t)
	n.Must(func() error {
		at := netip.MustParseAddrPort("127.0.0.1:8472")
		d, err := OpenDetour(at, 1)
		if err != nil {
			return err
		}
		defer d.Close()
		if _, err := OpenDetour(at, 2); !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EPERM) {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

func withoutChecksums(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, from *net.UDPConn, to netip.AddrPort, text string) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte(text), to); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, at *net.UDPConn, text string) {
	t.Helper()
	b := make([]byte, 100)
	at.SetReadDeadline(time.Now().Add(5 * time.Second))
	switch n, _, err := at.ReadFromUDPAddrPort(b); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.Fatalf("%q has not arrived", text)
	case err != nil:
		t.Fatal(err)
	case string(b[:n]) != text:
		t.Errorf("got %q, want %q", b[:n], text)
	}
}
