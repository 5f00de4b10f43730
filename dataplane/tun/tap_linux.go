package tun

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// TunnelHeaderLen is the length of struct virtio_net_hdr_v1_hash_tunnel (linux/virtio_net.h, Linux 6.17).
const TunnelHeaderLen = 24

// Of TUNSETOFFLOAD, Linux 6.17: superpackets inside of UDP tunnels, with and without outer checksums.
const tunnelGSO = 0x80 | 0x100

const tapMode = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// OpenTunnelTAP makes a TAP device that takes superpackets which are encapsulated already, each behind a vnet header
// of TunnelHeaderLen. It is down, and goes with the file. name may have a %d, for a number that is free. buffer bounds the
// bytes of what was written and has not left this host yet: then a write fails with EAGAIN. A kernel before Linux 6.17
// refuses it.
func OpenTunnelTAP(name string, buffer int) (file *os.File, device string, err error) {
	fd, err := unix.Open(Path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", openError(err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, "", fmt.Errorf("make TAP device %q: %w", name, err)
	}
	req.SetUint16(tapMode)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, "", attachError(name, err)
	}
	if err := setTunnel(fd, buffer); err != nil {
		return nil, "", fmt.Errorf("set up %s: %w", req.Name(), err)
	}
	return os.NewFile(uintptr(fd), req.Name()), req.Name(), nil
}

// TakeTunnelTAP returns a duplicate of a file that another process got from OpenTunnelTAP with the same name, and the name of its device.
// The file may be any file, and its device may be deleted or in another network namespace. Then the error says so, and nothing is changed.
func TakeTunnelTAP(given *os.File, name string, buffer int) (file *os.File, device string, err error) {
	conn, err := given.SyscallConn()
	if err != nil {
		return nil, "", err
	}
	fd := -1
	cerr := conn.Control(func(own uintptr) {
		if device, err = checkTunnel(int(own), name); err == nil {
			fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return nil, "", err
	}
	file = os.NewFile(uintptr(fd), device)
	if err := setTunnel(fd, buffer); err != nil {
		file.Close()
		return nil, "", fmt.Errorf("set up %s: %w", device, err)
	}
	return file, device, nil
}

// checkTunnel returns the name of the device of a file of OpenTunnelTAP.
func checkTunnel(fd int, name string) (device string, err error) {
	device, flags, err := queue(fd)
	switch {
	case err != nil:
		return "", err
	case !strings.HasPrefix(device, strings.TrimSuffix(name, "%d")):
		return "", fmt.Errorf("it is a queue of %q", device)
	case flags != tapMode:
		return "", fmt.Errorf("%s has the mode %#x, not %#x", device, flags, tapMode)
	}
	return device, checkNetNS(fd)
}

// setTunnel makes a file of a TAP device one that takes superpackets inside of tunnels.
func setTunnel(fd, buffer int) error {
	if err := Own(fd); err != nil {
		return err
	}
	for _, set := range []struct {
		what string
		do   func() error
	}{
		{"TUNSETVNETHDRSZ", func() error { return unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, TunnelHeaderLen) }},
		{"TUNSETOFFLOAD", func() error { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|TSO|tunnelGSO) }},
		{"TUNSETSNDBUF", func() error { return unix.IoctlSetPointerInt(fd, unix.TUNSETSNDBUF, buffer) }},
		{"TUNSETCARRIER", func() error { return unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, 0) }}, // nothing is to leave by it
	} {
		if err := set.do(); err != nil {
			return os.NewSyscallError("ioctl "+set.what, err)
		}
	}
	return nil
}

// Attached reports whether a file is of a device that is still there.
func Attached(fd int) bool {
	_, _, err := queue(fd)
	return err == nil
}
