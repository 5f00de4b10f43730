package handover

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// ListenerName is the name of a TCP listener at an address, as the user has written that.
func ListenerName(at string) string { return "listener " + at }

// ExportListener returns a duplicate of l: who connects while nobody accepts waits.
func ExportListener(l net.Listener, at string) ([]carrier.Export, error) {
	t, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("a %T cannot be handed over", l)
	}
	e, err := carrier.ExportFile(t, ListenerName(at), 0)
	if err != nil {
		return nil, err
	}
	return []carrier.Export{e}, nil
}

// Listen takes the listener at an address, which the service manager may have too, or opens one and has it kept.
func (e *Estate) Listen(at string, open func() (net.Listener, error)) (net.Listener, error) {
	name := ListenerName(at)
	exports := e.TakeNamed(name)
	if len(exports) > 0 {
		l, err := Listener(exports, at)
		if err == nil {
			return l, nil
		}
		e.Log.Warn("cannot take over the listener of the previous process: opening another", "err", err)
		e.Unkeep([]string{name})
	}
	l, err := open()
	if err != nil {
		return nil, err
	}
	kept, err := ExportListener(l, at)
	if err == nil {
		err = e.Keeper.Put(kept)
	}
	carrier.CloseExports(kept)
	if err != nil {
		e.Log.Warn("nothing listens between two daemons", "address", at, "err", err)
	}
	return l, nil
}

// Listener returns the listener that the only export has. The error says why it does not listen at that address. Listener closes the exports.
func Listener(exports []carrier.Export, at string) (net.Listener, error) {
	defer carrier.CloseExports(exports)
	if len(exports) != 1 {
		return nil, fmt.Errorf("%d listeners at %s", len(exports), at)
	}
	conn, err := exports[0].File.SyscallConn()
	if err == nil {
		var ferr error
		err = conn.Control(func(fd uintptr) { ferr = checkListens(int(fd)) })
		err = errors.Join(err, ferr)
	}
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(exports[0].File)
	if err != nil {
		return nil, err
	}
	if err := checkAddr(l.Addr(), at); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// checkListens returns why a file is not a socket that listens in the network namespace of the calling thread.
func checkListens(fd int) error {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_ACCEPTCONN", err)
	}
	if listens == 0 {
		return errors.New("the socket does not listen")
	}
	return udp.CheckNetNS(fd)
}

// checkAddr returns an error unless a listener is at what at says.
func checkAddr(addr net.Addr, at string) error {
	want, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		return err
	}
	got, ok := addr.(*net.TCPAddr)
	every := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	if !ok || got.Port != want.Port || !got.IP.Equal(want.IP) && !(every(got.IP) && every(want.IP)) {
		return fmt.Errorf("it listens at %s %s, not at %s", addr.Network(), addr, at)
	}
	return nil
}
