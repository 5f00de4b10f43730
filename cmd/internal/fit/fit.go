// Package fit says what this host can carry: which network configs, with which dataplane and MTU. It also says
// which addresses of the underlay no subnet may hold. It opens no dataplane and changes nothing.
package fit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// Mode says which dataplane carries the packets.
type Mode string

// The modes. Auto takes the kernel's dataplane if it can be opened, and else the userspace one.
const (
	Auto      Mode = "auto"
	Kernel    Mode = "kernel"
	Userspace Mode = "userspace"
)

// Host is what the config of a network has to fit.
type Host struct {
	Mode            Mode
	WorkloadAddress bool // the overlay device has the address of a workload
	Underlay        underlay.Interface
}

// ErrKernelOnly says that only the kernel dataplane can carry a network.
var ErrKernelOnly = errors.New("only the kernel dataplane can carry it")

// Carries refuses, with its key, the first setting that the chosen dataplane lacks or this host
// cannot carry.
func (h Host) Carries(c control.Network) error {
	switch b := c.Backend; {
	case !b.IsVXLAN():
		if err := h.carriesPlain(c); err != nil {
			return err
		}
	case h.Mode == Userspace && b.GBP:
		return fmt.Errorf("network config: Backend.GBP: the userspace dataplane has no group policy: %w", ErrKernelOnly)
	case h.Mode == Userspace && b.Learning:
		return fmt.Errorf("network config: Backend.Learning: the userspace dataplane does not learn addresses: %w", ErrKernelOnly)
	case b.VNI > h.maxVNI(c):
		return fmt.Errorf("network config: Backend.VNI: %d: want at most %d, or the name of the device is too long", b.VNI, h.maxVNI(c))
	}
	return CheckMTU(c, h.Underlay)
}

// Anywhere returns the dataplanes that can carry a network on the host that suits it best. A backend without a tunnel needs none. If no host
// can carry the network, the error says why.
func Anywhere(c control.Network) (modes []Mode, err error) {
	h := Host{Mode: Auto, Underlay: widest()}
	if err := h.Carries(c); err != nil || !c.Backend.IsVXLAN() {
		return nil, err
	}
	for _, h.Mode = range []Mode{Kernel, Userspace} {
		if h.Carries(c) == nil {
			modes = append(modes, h.Mode)
		}
	}
	return modes, nil
}

// widest is an underlay on which the most can be carried: IPv4 has the shorter headers, and longer VNIs.
func widest() underlay.Interface {
	local := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	return underlay.Interface{Name: "the widest link", MTU: 65535, IPv4: underlay.End{Local: local, Public: local}}
}

// carriesPlain is Carries for the backends without encapsulation.
func (h Host) carriesPlain(c control.Network) error {
	if h.WorkloadAddress {
		return fmt.Errorf("network config: Backend.Type %q has no overlay device, which the address of a workload would be on", c.Backend.Type)
	}
	for _, u := range h.Underlay.Underlays(c.EnableIPv4, c.EnableIPv6) {
		if c.Backend.Type == control.BackendHostGW && u.Public != u.Local {
			return fmt.Errorf("network config: Backend.Type %q: this host publishes %s, and its own address is %s: routes cannot lead through a NAT", c.Backend.Type, u.Public, u.Local)
		}
	}
	return nil
}

// maxVNI returns the largest VNI that fits the names of the overlay devices: the kernel dataplane
// has a longer one on an IPv6 underlay.
func (h Host) maxVNI(c control.Network) uint32 {
	if h.Mode == Kernel && slices.ContainsFunc(h.Underlay.Underlays(c.EnableIPv4, c.EnableIPv6), func(u dataplane.Underlay) bool { return u.Local.Is6() }) {
		return dataplane.MaxDeviceVNIV6
	}
	return dataplane.MaxDeviceVNI
}
