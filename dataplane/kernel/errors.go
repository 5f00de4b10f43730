package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// What keeps the kernel dataplane from working, for callers that then take another.
var (
	// ErrUnsupported: the kernel has no vxlan devices.
	ErrUnsupported = errors.New("the kernel has no vxlan: load it with `modprobe vxlan` on the host, or use the userspace dataplane")
	// ErrPermission: the process may not configure the network.
	ErrPermission = errors.New("not permitted: run as root with CAP_NET_ADMIN")
	// ErrPortInUse: a socket or another vxlan device has the UDP port.
	ErrPortInUse = errors.New("UDP port is in use")
	// ErrUnderlayGone: the underlay link was removed, and the device with it. Run
	// ends with it, for a new link has another index: choose it and Open again.
	ErrUnderlayGone = errors.New("underlay link is gone")
)

// explain joins the kernel's refusal to make or start the device with the sentinel
// that it means, and with what to do about it.
func explain(err error, c *Config) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w", err, ErrPermission)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: %w", err, ErrUnsupported)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: VXLAN needs UDP port %d: %w; find by whom with `ss -lunp 'sport = :%[2]d'` "+
			"(a program) or `ip -d link show type vxlan` (a device of another kind), "+
			"or choose another Port in the network config", err, c.Port, ErrPortInUse)
	}
	return err
}
