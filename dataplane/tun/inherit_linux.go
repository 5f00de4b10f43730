package tun

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CheckQueue returns why a file that another process has opened is not a queue of the TUN device of that name and mode,
// in the network namespace of the calling thread: it may be any file, or the device may be gone.
func CheckQueue(fd int, name string, mode Mode) error {
	got, flags, err := queue(fd)
	switch {
	case err != nil:
		return err
	case got != name:
		return fmt.Errorf("it is a queue of %q", got)
	case flags != mode.flags():
		return fmt.Errorf("the device has the mode %#x, not %#x", flags, mode.flags())
	}
	return checkNetNS(fd)
}

// Queue returns of which device a file is a queue, and the device's mode.
func Queue(fd int) (name string, mode Mode, err error) {
	name, flags, err := queue(fd)
	return name, Mode{Vnet: flags&unix.IFF_VNET_HDR != 0, Multi: flags&unix.IFF_MULTI_QUEUE != 0}, err
}

// queue is Queue with the flags of the mode.
func queue(fd int) (name string, flags uint16, err error) {
	req, err := unix.NewIfreq("")
	if err != nil {
		return "", 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
		return "", 0, fmt.Errorf("it is not a queue of a TUN device that exists: %w", os.NewSyscallError("ioctl TUNGETIFF", err))
	}
	const known = unix.IFF_TUN | unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE | unix.IFF_DETACH_QUEUE
	return req.Name(), req.Uint16() & known, nil
}

// checkNetNS returns an error if the device of a queue is in another network namespace. A kernel before Linux 5.2
// does not tell.
func checkNetNS(fd int) error {
	ns, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("ioctl TUNGETDEVNETNS", err)
	}
	defer unix.Close(ns)
	var its, own unix.Stat_t
	if err := errors.Join(unix.Fstat(ns, &its), unix.Stat("/proc/thread-self/ns/net", &own)); err != nil {
		return fmt.Errorf("find the network namespace: %w", err)
	}
	if its.Ino != own.Ino || its.Dev != own.Dev {
		return errors.New("the device is in another network namespace")
	}
	return nil
}
