// Package tun makes and opens TUN and TAP devices: the character device, the persistent interface, its
// queues and offloads. What is read from them and written to them is its caller's business.
package tun

import "errors"

// What keeps a TUN device from being made or opened, apart from what can only be read. Callers know the remedies.
var (
	// ErrNoTUN says that /dev/net/tun is missing or cannot be opened, as in a container
	// that was not given it.
	ErrNoTUN = errors.New("no usable " + Path)
	// ErrNoModule says that the kernel has no TUN support: it is built without, or the module is not
	// loaded.
	ErrNoModule = errors.New("the kernel has no TUN support")
	// ErrPermission says that CAP_NET_ADMIN is missing.
	ErrPermission = errors.New("CAP_NET_ADMIN is missing")
	// ErrDeviceBusy says that another process, such as another overlayd, has a queue of the device.
	ErrDeviceBusy = errors.New("another process has the device open")
)

// Path is the device through which TUN devices are made and opened.
const Path = "/dev/net/tun"
