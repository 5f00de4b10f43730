package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Giver makes room for another daemon.
type Giver interface {
	// Give stops forwarding and returns what the other daemon is to go on with; the files are the
	// caller's. After an error everything goes on. It takes a few seconds at most: Ask does not wait for ever.
	Give(Question) (Legacy, error)
	// Given ends this daemon after Give: the other one has everything, unless err says why it has not.
	Given(err error)
}

// Server answers at the socket of a daemon.
type Server struct {
	path     string
	log      *slog.Logger
	giver    Giver
	isOwner  func() bool
	patience time.Duration // with the other side, each time it is waited for
	period   time.Duration // between two looks at path
	done     sync.WaitGroup
	heir     *net.UnixConn // open until this process ends or LetGo, by which the other one notices

	mu      sync.Mutex
	ended   chan struct{}     // closed by Stop
	l       *net.UnixListener // nil: the server does not listen yet
	at      os.FileInfo       // the socket of l
	notices pace.Notices
}

// keepPeriod is how long a socket that somebody has removed is missing at most.
const keepPeriod = 2 * time.Second

// Serve answers at path until Stop, whenever isOwner says that the daemon has the claim of the subnet file. A socket that a daemon has
// left there is replaced, and one that somebody has removed is made again.
func Serve(path string, log *slog.Logger, g Giver, isOwner func() bool) *Server {
	return serve(path, log, g, isOwner, patience, keepPeriod)
}

func serve(path string, log *slog.Logger, g Giver, isOwner func() bool, patience, period time.Duration) *Server {
	s := &Server{path: path, log: log, giver: g, isOwner: isOwner, patience: patience, period: period, ended: make(chan struct{})}
	s.ensure()
	s.done.Go(s.serve)
	return s
}

// ensure listens at path, unless s does. It returns nil if it cannot, and after Stop.
func (s *Server) ensure() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
		return nil
	default:
	}
	if s.l != nil && claim.IsSocketAt(s.at, s.path) || !s.isOwner() {
		return s.l
	}
	l, at, err := listen(s.path)
	if err != nil {
		s.warn("another daemon cannot take the place of this one without a loss of packets: trying again", err)
		return s.l
	}
	if s.l != nil {
		s.l.Close()
		s.warn("the socket for a daemon that takes the place of this one was lost: made again", errors.New("somebody removed "+s.path))
	}
	s.l, s.at = l, at
	return l
}

func (s *Server) warn(text string, err error) {
	if due, _ := s.notices.Due(time.Now(), pace.Notice{Key: text, Text: err.Error()}); len(due) > 0 {
		s.log.Warn(text, "err", err)
	}
}

func listen(path string) (l *net.UnixListener, at os.FileInfo, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	if l, err = claim.Listen("unixpacket", path); err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // another daemon may have the path by then
	if at, err = os.Lstat(path); err != nil {
		l.Close()
	}
	return l, at, err
}

// Stop removes the socket and waits until the last answer is given.
func (s *Server) Stop() {
	s.mu.Lock()
	close(s.ended)
	if s.l != nil {
		if claim.IsSocketAt(s.at, s.path) {
			_ = os.Remove(s.path) // what is left is dead, and nobody's
		}
		s.l.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

// LetGo tells the process that goes on that this one has ended, as far as it is concerned. It is called after Stop.
func (s *Server) LetGo() {
	if s.heir != nil {
		s.heir.Close()
	}
}

// HasGiven reports whether another process goes on in the place of this one. It is called after Stop.
func (s *Server) HasGiven() bool { return s.heir != nil }

// serve answers one question after the other, until this daemon has given its place or Stop.
func (s *Server) serve() {
	for {
		c, err := s.accept()
		if err != nil {
			if errors.Is(err, errStopped) {
				return
			}
			s.warn("another daemon cannot take the place of this one without a loss of packets: trying again", err)
			continue
		}
		given, err := s.answer(c)
		if given {
			s.heir = c
			s.giver.Given(err)
			return
		}
		c.Close()
		if err != nil {
			s.log.Warn("another process asked to take the place of this one, and was refused", "err", err)
		}
	}
}

var errStopped = errors.New("stopped")

// accept waits for somebody who asks, and looks from time to time whether he could.
func (s *Server) accept() (*net.UnixConn, error) {
	for {
		l, err := s.ensure(), error(nil)
		if l != nil {
			var c *net.UnixConn
			if err = l.SetDeadline(time.Now().Add(s.period)); err == nil {
				c, err = l.AcceptUnix()
			}
			if err == nil {
				return c, nil
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
		}
		select {
		case <-s.ended:
			return nil, errStopped
		case <-time.After(s.period):
		}
		if err != nil {
			return nil, err
		}
	}
}

// answer answers one question. given says that this daemon forwards no more.
func (s *Server) answer(c *net.UnixConn) (given bool, err error) {
	if err := c.SetReadDeadline(time.Now().Add(s.patience)); err != nil {
		return false, err
	}
	if err := checkPeer(c); err != nil {
		return false, err
	}
	q, err := readQuestion(c)
	if err != nil {
		return false, errors.Join(err, s.send(c, answer{Error: err.Error()}))
	}
	if hasGone(c) {
		return false, errGone
	}
	legacy, err := s.giver.Give(q)
	if err != nil {
		return false, errors.Join(err, s.send(c, answer{Error: err.Error()}))
	}
	defer carrier.CloseExports(legacy.Exports)
	return true, s.send(c, answer{Legacy: legacy})
}

// errGone says that whoever asked waits for no answer any more, as when this process was stopped (SIGSTOP) or had no processor. The other one has ended by then, and
// nobody would forward if this daemon gave its place.
var errGone = errors.New("it has gone by now: this daemon goes on")

// hasGone reports whether the other side has closed a connection from which all was read.
func hasGone(c *net.UnixConn) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
	})
	return gone || err != nil
}

// send is send with the whole patience: Give has taken time of its own.
func (s *Server) send(c *net.UnixConn, a answer) error {
	return errors.Join(c.SetWriteDeadline(time.Now().Add(s.patience)), send(c, a))
}

func readQuestion(c *net.UnixConn) (q Question, err error) {
	b := make([]byte, maxMessage)
	n, err := c.Read(b)
	if err != nil {
		return q, err
	}
	if err := json.Unmarshal(b[:n], &q); err != nil {
		return q, fmt.Errorf("read question: %w", err)
	}
	if q.Version != version {
		return q, fmt.Errorf("version %d was asked for, and this is version %d", q.Version, version)
	}
	return q, nil
}

// CheckFit returns why the legacy cannot be handed over with that number of files more.
func (l *Legacy) CheckFit(more int) error {
	if n := len(l.Exports) + more; n > maxFiles {
		return fmt.Errorf("%d files are to be handed over, and the kernel takes %d at once", n, maxFiles)
	}
	return nil
}
