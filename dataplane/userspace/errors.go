package userspace

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/overlayd/overlayd/dataplane/tun"
)

// What keeps Open from working, apart from what can only be read. Callers know the remedies.
var (
	ErrNoTUN      = tun.ErrNoTUN      // /dev/net/tun is missing or cannot be opened
	ErrNoModule   = tun.ErrNoModule   // the kernel has no TUN support
	ErrPermission = tun.ErrPermission // CAP_NET_ADMIN is missing
	ErrDeviceBusy = tun.ErrDeviceBusy // another process forwards for the device
)

// NameTakenError says that the name of the TUN device belongs to a device that overlayd does not
// replace.
type NameTakenError struct {
	Name string
	Type string // of the device, such as "bridge"
}

// Error implements error.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("make TUN device %s: a device of type %s has this name", e.Name, e.Type)
}

// PortTakenError says that the UDP port is in use. It wraps the kernel's EADDRINUSE.
type PortTakenError struct {
	Local   netip.AddrPort
	Devices []string // the vxlan devices that hold it; a program does if there are none
	Err     error
}

// Error implements error.
func (e *PortTakenError) Error() string {
	by := "a program"
	if len(e.Devices) > 0 {
		by = "vxlan device " + strings.Join(e.Devices, " and ")
	}
	return fmt.Sprintf("bind UDP %s: port %d is in use by %s: %v", e.Local, e.Local.Port(), by, e.Err)
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *PortTakenError) Unwrap() error { return e.Err }
