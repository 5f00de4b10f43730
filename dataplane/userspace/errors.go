package userspace

import "github.com/overlayd/overlayd/dataplane/tun"

// What keeps Open from working, apart from what can only be read. Callers know the remedies.
var (
	ErrNoTUN      = tun.ErrNoTUN      // /dev/net/tun is missing or cannot be opened
	ErrNoModule   = tun.ErrNoModule   // the kernel has no TUN support
	ErrPermission = tun.ErrPermission // CAP_NET_ADMIN is missing
	ErrDeviceBusy = tun.ErrDeviceBusy // another process has a queue of the device
)
