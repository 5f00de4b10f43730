package parts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// TestHolderOfThePort: the process that has the port is named, and none if a device of the kernel has it.
func TestHolderOfThePort(t *testing.T) {
	local := netip.MustParseAddrPort("192.0.2.2:8472")
	for _, c := range []struct {
		name, has string
		err       error
		want      string // in the error; empty: it stays as it is
	}{
		{"process", "process", &udp.PortTakenError{Local: local, Err: unix.EADDRINUSE}, " has UDP port 8472"},
		{"process, kernel dataplane", "process", fmt.Errorf("set up: %w: %w", unix.EADDRINUSE, kernel.ErrPortInUse), " has UDP port 8472"},
		{"device", "device", &udp.PortTakenError{Local: local, Devices: []string{"vx"}, Err: unix.EADDRINUSE}, ""},
		{"device with the VNI", "device", fmt.Errorf("make vxlan device: %w: %w: device vx has VNI 7", unix.EEXIST, kernel.ErrPortInUse), ""},
		{"another error", "process", errors.New("other"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			ns.Must(func() error {
				if c.has == "device" {
					ns.Run("ip", "link", "add", "vx", "type", "vxlan", "id", "7", "dstport", "8472")
					ns.Run("ip", "link", "set", "vx", "up")
				} else if l, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 8472}); err != nil {
					return err
				} else {
					defer l.Close()
				}
				got := NameHolder(8472, c.err)
				if c.want == "" && got != c.err || !strings.Contains(got.Error(), c.want) {
					t.Errorf("%v", got)
				}
				return nil
			})
		})
	}
}
