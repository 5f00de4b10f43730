package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// Supported returns why the kernel does not let the caller make vxlan devices, as far as that is known without making one; nil: it does.
// The kernel may load its module for that.
func Supported() error {
	// A kernel with vxlan refuses one without any properties before it makes it.
	err := netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: rtnl.TemporaryName(false, dataplane.MaxDeviceVNI)}, LinkType: "vxlan"})
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return explain(fmt.Errorf("try to make a vxlan device: %w", err), new(Config))
}

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
