package tun

import (
	"fmt"
	"os"

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
	device = req.Name()
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
			return nil, "", fmt.Errorf("set up %s: %w", device, os.NewSyscallError("ioctl "+set.what, err))
		}
	}
	return os.NewFile(uintptr(fd), device), device, nil
}

// Attached reports whether a file is of a device that is still there.
func Attached(fd int) bool {
	_, _, err := queue(fd)
	return err == nil
}
