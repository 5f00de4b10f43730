package udp

import (
	"errors"
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
