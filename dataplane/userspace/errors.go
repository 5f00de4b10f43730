package userspace

import (
	"fmt"

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
