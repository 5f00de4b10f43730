package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// CheckInherited checks that a file which another process has opened is a UDP socket that is bound to local, in the network
// namespace of the calling thread, and takes datagrams from everybody. The file may be any file. The error says what is wrong.
func CheckInherited(fd int, local netip.AddrPort) error {
	for _, o := range []struct {
		name, want int
		text       string
	}{{unix.SO_TYPE, unix.SOCK_DGRAM, "SO_TYPE"}, {unix.SO_PROTOCOL, unix.IPPROTO_UDP, "SO_PROTOCOL"}} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.name)
		if err != nil {
			return os.NewSyscallError("getsockopt "+o.text, err)
		}
		if got != o.want {
			return fmt.Errorf("its %s is %d, not %d", o.text, got, o.want)
		}
	}
	at, err := LocalAddr(fd)
	switch {
	case err != nil:
		return err
	case at != local:
		return fmt.Errorf("it is bound to %s", at)
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return errors.New("it is connected")
	}
	return CheckNetNS(fd)
}

// CheckNetNS returns an error if a socket is of another network namespace than that of the calling thread. A kernel
// before Linux 5.14 does not tell.
func CheckNetNS(fd int) error {
	its, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	}
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		own, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(own)
	cookie, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	}
	if its != cookie {
		return errors.New("it is of another network namespace")
	}
	return nil
}
