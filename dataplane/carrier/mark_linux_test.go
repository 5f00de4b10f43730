package carrier

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestMark: all that a carrier sends has the mark, or none of it if the process may set none, which it says once.
func TestMark(t *testing.T) {
	t.Parallel()
	for _, local := range []string{"127.0.0.1", "::1"} {
		for _, may := range []bool{true, false} {
			var text bytes.Buffer
			n := netnstest.New(t)
			var s *sendSockets
			n.Must(func() (err error) {
				if !may { // this thread only, which is thrown away
					err = dropCapabilities()
				}
				if err == nil {
					s, err = openSendSockets(UDPConfig{Log: slog.New(slog.NewTextHandler(&text, nil)), Local: netip.AddrPortFrom(netip.MustParseAddr(local), 0), DF: true, Mark: 0x100000}, nil)
				}
				return err
			})
			defer s.close()
			want := map[bool]int{true: 0x100000}[may]
			for _, fd := range s.fds {
				if mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); err != nil || mark != want {
					t.Errorf("%s: a socket has the mark %#x, %v, want %#x", local, mark, err, want)
				}
			}
			if lines := strings.Count(text.String(), "mark=0x100000"); lines != map[bool]int{true: 0, false: 1}[may] {
				t.Errorf("%s: logged %q", local, &text)
			}
		}
	}
}

// dropCapabilities takes all capabilities from the calling thread.
func dropCapabilities() error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&h, &none[0])
}
