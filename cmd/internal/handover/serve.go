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

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/dataplane/carrier"
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
	l        *net.UnixListener
	log      *slog.Logger
	giver    Giver
	patience time.Duration // with the other side, each time it is waited for
	done     sync.WaitGroup
	heir     *net.UnixConn // open until this process ends or LetGo, by which the other one notices
}

// Serve answers at path until Stop. A socket that a daemon has left there is replaced: the caller has
// the claim of the subnet file.
func Serve(path string, log *slog.Logger, g Giver) (*Server, error) {
	return serve(path, log, g, patience)
}

func serve(path string, log *slog.Logger, g Giver, patience time.Duration) (*Server, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := claim.Listen("unixpacket", path)
	if err != nil {
		return nil, err
	}
	s := &Server{l: l, log: log, giver: g, patience: patience}
	s.done.Go(s.serve)
	return s, nil
}

// Stop removes the socket and waits until the last answer is given.
func (s *Server) Stop() {
	s.l.Close()
	s.done.Wait()
}

// LetGo tells the process that goes on that this one has ended, as far as it is concerned. It is called after Stop.
func (s *Server) LetGo() {
	if s.heir != nil {
		s.heir.Close()
	}
}

// serve answers one question after the other, until this daemon has given its place or the listener is closed.
func (s *Server) serve() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			return
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
	legacy, err := s.giver.Give(q)
	if err != nil {
		return false, errors.Join(err, s.send(c, answer{Error: err.Error()}))
	}
	defer carrier.CloseExports(legacy.Exports)
	return true, s.send(c, answer{Legacy: legacy})
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
