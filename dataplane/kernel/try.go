package kernel

import (
	"log/slog"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
)

// Available returns why this machine does not let the caller make vxlan devices: nil if it does. It
// makes one and removes it.
func Available() error {
	const loopback, nobodys = 1, dataplane.MaxDeviceVNI // the link that every namespace has, and a VNI that hardly anybody has
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	d, err := Open(Config{
		Log:       slog.New(slog.DiscardHandler),
		Underlays: []dataplane.Underlay{{Link: loopback, Local: local, Public: local}},
		VNI:       nobodys,
		Port:      65535,
		MTU:       1280,
		Later:     true,
	})
	if err != nil {
		return err
	}
	return d.Close()
}
