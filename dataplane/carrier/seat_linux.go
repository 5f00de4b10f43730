package carrier

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/dataplane/udp"
)

// socket is a bound socket that a receiver reads.
type socket struct {
	file *os.File // non-blocking: Go's poller waits
	conn syscall.RawConn
	left chan struct{} // closed once the receiver reads another socket and this one is closed
}

func newSocket(file *os.File) (*socket, error) {
	s := &socket{file: file, left: make(chan struct{})}
	var err error
	if s.conn, err = s.file.SyscallConn(); err != nil {
		s.close()
		return nil, fmt.Errorf("open UDP socket: %w", err)
	}
	return s, nil
}

func (s *socket) close() { s.file.Close() }

// stop wakes the reader in Go's poller.
func (s *socket) stop() { s.file.SetReadDeadline(time.Unix(1, 0)) }

// setup runs f with the socket.
func (s *socket) setup(f func(fd int) error) error {
	var ferr error
	err := s.conn.Control(func(fd uintptr) { ferr = f(int(fd)) })
	return errors.Join(err, ferr)
}

// addr returns the address to which it is bound.
func (s *socket) addr() (at netip.AddrPort, err error) {
	err = s.setup(func(fd int) (err error) {
		at, err = udp.LocalAddr(fd)
		return err
	})
	return at, err
}

// drops returns how many datagrams the kernel dropped before they were read; 0 once it is closed.
func (s *socket) drops() (n uint64) {
	_ = s.conn.Control(func(fd uintptr) { n = udp.Drops(int(fd)) })
	return n
}

// seat has the socket that a receiver reads, and the one to which it is to move.
type seat struct {
	at      *socket                // of the receiver's goroutine
	next    atomic.Pointer[socket] // the socket to move to; nil: it stays
	mu      sync.Mutex             // of all below
	now     *socket                // the same as at, for other goroutines
	stopped bool
	dropped uint64 // at earlier sockets

	filtered *socket // the socket that has the filter of shield_linux.go, as last wanted; nil: none, as after an error
}

// sit takes the first socket.
func (s *seat) sit(at *socket) { s.at, s.now = at, at }

// moveTo makes the receiver go on at another socket. It first reads everything at its present socket, and then closes
// that. Nothing may arrive at the present socket any more. The channel is closed once the receiver has moved.
func (s *seat) moveTo(next *socket) (moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.next.Swap(next); before != nil {
		before.close() // it has not gone there
	}
	s.now.stop() // it waits there
	return s.now.left
}

func (s *seat) isToMove() bool { return s.next.Load() != nil }

// move makes the receiver go on at the next socket, and closes the present one.
func (s *seat) move() {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.at
	s.at = s.next.Swap(nil)
	s.now = s.at
	if s.stopped {
		s.now.stop()
	}
	s.dropped += old.drops()
	old.close()
	close(old.left)
}

// drops returns how many datagrams the kernel dropped before they were read.
func (s *seat) drops() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped + s.now.drops()
}

// filter calls f to change the filter of the socket, unless this socket has that filter already.
func (s *seat) filter(again bool, f func(fd int) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filtered == s.now && !again {
		return nil
	}
	s.filtered = nil
	err := s.now.setup(f)
	if err == nil {
		s.filtered = s.now
	}
	return err
}

// Stop implements Receiver.
func (s *seat) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.now.stop()
}

// close closes the sockets, after the last Receive.
func (s *seat) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped += s.now.drops()
	s.now.close()
	if next := s.next.Swap(nil); next != nil {
		next.close()
	}
}
