package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reasons why the kernel dataplane cannot work. Callers may then use another one.
var (
	// ErrUnsupported: the kernel has no vxlan devices.
	ErrUnsupported = errors.New("the kernel has no vxlan: load it with `modprobe vxlan` on the host, or use the userspace dataplane")
	// ErrPermission: the process may not configure the network.
	ErrPermission = errors.New("not permitted: run as root with CAP_NET_ADMIN")
	// ErrPortInUse: a socket or another vxlan device has the UDP port.
	ErrPortInUse = errors.New("UDP port is in use")
	// ErrUnderlayGone: the underlay link was removed, and the device with it. Run returns it: a
	// new link has another index, and must be passed to Open.
	ErrUnderlayGone = errors.New("underlay link is gone")
	// ErrHeldDown: Config.MayBeUp returned false.
	ErrHeldDown = errors.New("it is held down until its guard is in place")
)

// explain wraps the kernel's refusal to make or start the device with its sentinel, and adds
// what to do about it.
func explain(err error, c *Config) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w", err, ErrPermission)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: VXLAN needs UDP port %d: %w; find its user with `ss -lunp 'sport = :%[2]d'` "+
			"(a program) or `ip -d link show type vxlan` (a device of another kind), "+
			"or choose another Port in the network config", err, c.Port, ErrPortInUse)
	}
	return err
}
