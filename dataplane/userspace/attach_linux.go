package userspace

import (
	"fmt"
	"os"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// attachTUN opens a queue of the TUN device of that name, which it makes if there is
// none. An empty name takes any free one.
func attachTUN(name string, mode tunMode) (fd int, err error) {
	if fd, err = unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return -1, openError(err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make TUN device %q: name of more than 15 bytes: %w", name, err)
	}
	req.SetUint16(mode.flags())
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return -1, makeError(name, err)
	}
	return fd, nil
}

// openWater opens a queue of the persistent TUN device of that name with water,
// which leaks its file if TUNSETIFF fails: the device must be there.
func openWater(name string, multi bool) (*os.File, error) {
	w, err := water.New(water.Config{
		DeviceType:             water.TUN,
		PlatformSpecificParams: water.PlatformSpecificParams{Name: name, Persist: true, MultiQueue: multi},
	})
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	file, ok := w.ReadWriteCloser.(*os.File)
	if !ok {
		w.Close()
		return nil, fmt.Errorf("attach to %s: water gave a %T, not a file", name, w.ReadWriteCloser)
	}
	// Child processes must not inherit the queue: they would keep it busy.
	conn, err := file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { unix.CloseOnExec(int(fd)) })
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	return file, nil
}

// The offloads of TUNSETOFFLOAD (linux/if_tun.h).
const (
	tunUSO = unix.TUN_F_USO4 | unix.TUN_F_USO6 // UDP superpackets, Linux 6.2; one of them alone is refused
	tunTSO = unix.TUN_F_TSO4 | unix.TUN_F_TSO6
)

// setTUNOffloads sets the length of the vnet header and the offloads, and returns
// those that the kernel has. They are the device's and outlive the process.
func setTUNOffloads(fd int, offloads Offloads) (mask int, err error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetLen); err != nil {
		return 0, os.NewSyscallError("ioctl TUNSETVNETHDRSZ", err)
	}
	masks := []int{unix.TUN_F_CSUM | tunTSO | unix.TUN_F_TSO_ECN | tunUSO, unix.TUN_F_CSUM | tunTSO | unix.TUN_F_TSO_ECN,
		unix.TUN_F_CSUM | tunTSO, unix.TUN_F_CSUM, 0}
	if !offloads.has(TUNGSO) {
		masks = masks[len(masks)-1:]
	}
	for _, mask = range masks {
		if err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, mask); err == nil {
			return mask, nil
		}
	}
	return 0, os.NewSyscallError("ioctl TUNSETOFFLOAD", err)
}
