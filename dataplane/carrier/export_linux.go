package carrier

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExportFile returns an Export of a file or socket that is open in Go's poller.
func ExportFile(f syscall.Conn, name string, flags uint64) (Export, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return Export{}, fmt.Errorf("export %s: %w", name, err)
	}
	var fd int
	var ferr error
	err = conn.Control(func(own uintptr) { fd, ferr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, ferr); err != nil {
		return Export{}, fmt.Errorf("export %s: %w", name, err)
	}
	_ = unix.SetNonblock(fd, true) // it is, unless it came from another process: Go's poller could not wait for it
	return Export{Name: name, Flags: flags, Version: ExportVersion, File: os.NewFile(uintptr(fd), name)}, nil
}

// Export implements Exporter: the sockets that receive. Those that send hold nothing.
func (c *udpCarrier) Export() (exports []Export, err error) {
	for _, r := range c.in {
		e, err := r.export()
		if err != nil {
			CloseExports(exports)
			return nil, err
		}
		exports = append(exports, e)
	}
	return exports, nil
}

// export is Export for the socket of a receiver.
func (s *seat) export() (Export, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isToMove() {
		return Export{}, errors.New("the UDP port changes hands")
	}
	return ExportFile(s.now.file, s.now.file.Name(), 0)
}
