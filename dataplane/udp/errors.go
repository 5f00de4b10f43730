package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ErrNoPort says that every UDP port that any user may have is taken.
var ErrNoPort = errors.New("no UDP port of this host is free")

// PortTakenError says that the UDP port is in use. It wraps the kernel's EADDRINUSE.
type PortTakenError struct {
	Local   netip.AddrPort
	Devices []string // the vxlan devices that hold it; if empty, a program does
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

// VRFError says that an interface is in a VRF, to whose addresses a socket outside of it cannot be bound. It wraps the kernel's EADDRNOTAVAIL.
type VRFError struct {
	Local       netip.AddrPort
	Device, VRF string
	Err         error
}

// Error implements error.
func (e *VRFError) Error() string {
	return fmt.Sprintf("bind UDP %s: %s is in VRF %s, which the userspace dataplane cannot use: %v", e.Local, e.Device, e.VRF, e.Err)
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *VRFError) Unwrap() error { return e.Err }
