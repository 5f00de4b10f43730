package admin

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	readTimeout = 5 * time.Second // of a request
	maxHeader   = 8 << 10
	maxBody     = 4 << 10
	keepPeriod  = 2 * time.Second
	endPatience = 200 * time.Millisecond // with answers that are being written when the daemon ends

	// WriteTimeout bounds an answer, unless the route sets another deadline.
	WriteTimeout = 10 * time.Second
)

// Config says where a Server listens, and what it answers.
type Config struct {
	Path   string
	Group  int // number of the group that may use the socket; -1: the process's own
	Routes []Route
	Log    *slog.Logger
}

// Server is the admin socket of a daemon. Nothing that happens to it ends the daemon.
type Server struct {
	cfg   Config
	http  http.Server
	conns conns
	serve sync.WaitGroup
	keep  sync.WaitGroup
	stop  chan struct{} // ends keep
	once  sync.Once     // of Stop

	listener *net.UnixListener // nil: nothing listens now; used by Start, then by keep, then by Stop
	at       os.FileInfo       // of the listener
	failed   atomic.Bool       // the listener accepts no more

	mu      sync.Mutex // of the fields below
	notices pace.Notices
	stats   status.Admin
}

// Start serves at cfg.Path until Stop. With takePlace the daemon that listens there is about to end, and this one takes
// its place. What keeps it from listening is logged once and tried again until ctx ends.
func Start(ctx context.Context, cfg Config, takePlace bool) *Server {
	return start(ctx, cfg, takePlace, keepPeriod)
}

func start(ctx context.Context, cfg Config, takePlace bool, period time.Duration) *Server {
	s := &Server{cfg: cfg, stop: make(chan struct{})}
	s.http = http.Server{Handler: s.handler(), ReadTimeout: readTimeout, WriteTimeout: WriteTimeout, MaxHeaderBytes: maxHeader,
		ConnContext: withConn, ErrorLog: log.New(io.Discard, "", 0)} // what clients do wrong is theirs to know
	s.http.SetKeepAlivesEnabled(false)
	listens := s.ensure(takePlace)
	s.keep.Go(func() {
		// A daemon that is about to end may still have the path.
		for again := (pace.Backoff{Low: period / 40, High: period}); ; listens = s.ensure(false) {
			pause := period
			if listens {
				again.Reset()
			} else {
				pause = again.Next()
			}
			if !pace.Sleep(ctx, pause, s.stop) {
				return
			}
		}
	})
	return s
}

// ensure listens, unless it does and the path is still the listener's. It reports whether it does then.
func (s *Server) ensure(takePlace bool) bool {
	if s.listener != nil && !s.failed.Load() && claim.IsSocketAt(s.at, s.cfg.Path) {
		return true
	}
	l, at, err := listen(s.cfg.Path, s.cfg.Group, takePlace)
	if err != nil {
		s.warn("no admin socket: trying again. Until then overlayd status does not see this daemon", err)
		return false
	}
	if s.listener != nil {
		s.listener.Close()
		s.count(func(st *status.Admin) { st.Restored++ })
		s.warn("the admin socket was lost: made again", errors.New("somebody removed "+s.cfg.Path+", or it failed"))
	}
	s.listener, s.at = l, at
	s.failed.Store(false)
	s.serve.Go(func() {
		if err := s.http.Serve(listener{l, &s.conns}); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.failed.Store(true)
		}
	})
	return true
}

// Stop ends the server. It removes the socket, unless that is another process's by now or leave says that one is
// about to take its place.
func (s *Server) Stop(leave bool) { s.once.Do(func() { s.end(leave) }) }

func (s *Server) end(leave bool) {
	close(s.stop)
	s.keep.Wait()
	if !leave && s.listener != nil && claim.IsSocketAt(s.at, s.cfg.Path) {
		_ = os.Remove(s.cfg.Path) // what is left is dead, and nobody's
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	s.conns.closeIdle()
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
	s.serve.Wait()
}

// Stats returns what the server has done so far.
func (s *Server) Stats() status.Admin {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Dropped = s.conns.stats()
	return st
}

func (s *Server) count(add func(*status.Admin)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.stats)
}

// warn logs a fault once in ten minutes.
func (s *Server) warn(text string, err error, attrs ...any) {
	s.mu.Lock()
	due, _ := s.notices.Due(time.Now(), pace.Notice{Key: text, Text: err.Error()})
	s.mu.Unlock()
	if len(due) > 0 {
		s.cfg.Log.Warn(text, append([]any{"err", err}, attrs...)...)
	}
}
