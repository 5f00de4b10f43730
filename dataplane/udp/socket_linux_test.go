package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestCheckPort: each address is tried unless a device that goes holds its port, and such a device holds that of
// one family only.
func TestCheckPort(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("127.0.0.1:8472"), netip.MustParseAddrPort("[::1]:8472")
	vxlan := func(name, id, local string) []string {
		return []string{"ip", "link", "add", name, "up", "type", "vxlan", "id", id, "local", local, "dstport", "8472"}
	}
	for _, c := range []struct {
		name    string
		devices [][]string
		program netip.AddrPort // where another one listens
		taken   netip.AddrPort // that is refused; none if invalid
	}{
		{name: "nothing"},
		{name: "devices of both families go", devices: [][]string{vxlan("flannel.1", "1", "127.0.0.1"), vxlan("flannel-v6.1", "1", "::1")}},
		{name: "a program has the other address", devices: [][]string{vxlan("flannel.1", "1", "127.0.0.1")}, program: v6, taken: v6},
		{name: "a program has the first address", devices: [][]string{vxlan("flannel-v6.1", "1", "::1")}, program: v4, taken: v4},
		{name: "a device stays", devices: [][]string{vxlan("flannel.1", "1", "127.0.0.1"), vxlan("other", "9", "127.0.0.1")}, taken: v4},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := netnstest.New(t)
			for _, d := range c.devices {
				n.Run(d[0], d[1:]...)
			}
			n.Must(func() error {
				if c.program.IsValid() {
					fd, err := Open(c.program, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
				}
				conn, err := rtnl.Open()
				if err != nil {
					return err
				}
				defer conn.Close()
				err = CheckPort(conn, []netip.AddrPort{v4, v6}, func(name string) bool { return strings.HasPrefix(name, "flannel") })
				var taken *PortTakenError
				switch errors.As(err, &taken); {
				case taken == nil && (err != nil || c.taken.IsValid()), taken != nil && taken.Local != c.taken:
					t.Errorf("got %v, want %v refused", err, c.taken)
				}
				return nil
			})
		})
	}
}

// TestDropsOfWrongChecksums: the kernel counts a long datagram with a wrong checksum as a drop of the socket, and a short one not, as docs/metrics.md
// says.
func TestDropsOfWrongChecksums(t *testing.T) {
	for _, tt := range []struct {
		addr   string
		family int
		to     unix.Sockaddr
		length byte
		want   uint64
	}{
		{"127.0.0.1", unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, 76, 0},
		{"127.0.0.1", unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, 77, 3},
		{"::1", unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}, 76, 0},
		{"::1", unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}, 77, 3},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.addr, tt.length), func(t *testing.T) {
			netnstest.New(t).Must(func() error {
				fd, err := Open(netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 4789), 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				raw, err := unix.Socket(tt.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
				if err != nil {
					return err
				}
				defer unix.Close(raw)
				datagram := append([]byte{0x12, 0xb5, 0x12, 0xb5, 0, tt.length, 0xba, 0xd0}, make([]byte, tt.length-8)...) // from port 4789 to port 4789
				for range 3 {
					if err := unix.Sendto(raw, datagram, 0, tt.to); err != nil {
						return err
					}
				}
				good, err := net.Dial("udp", net.JoinHostPort(tt.addr, "4789"))
				if err != nil {
					return err
				}
				defer good.Close()
				if _, err := good.Write([]byte{1, 2}); err != nil {
					return err
				}
				if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})); err != nil {
					return err
				}
				if n, _, err := unix.Recvfrom(fd, make([]byte, 9), 0); err != nil || n != 2 { // that came last
					return fmt.Errorf("received %d bytes, %v", n, err)
				}
				if got := Drops(fd); got != tt.want {
					t.Errorf("%d drops, want %d", got, tt.want)
				}
				return nil
			})
		})
	}
}
