package status

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

const (
	maxPending = 4           // answers that are being taken, before one is reused
	reuse      = time.Second // for how long it is then
)

// Shared answers with what h does, which must answer all requests alike. However many ask, and however slowly they read, few answers take
// memory: one is made at a time, for all who wait for it, and if several have not been taken yet, the last one is given to others too.
func Shared(h http.Handler) http.Handler {
	return &shared{h: h, turn: make(chan struct{}, 1)}
}

type shared struct {
	h    http.Handler
	turn chan struct{} // whoever has put something in makes an answer

	mu      sync.Mutex
	last    *made // nil if nobody waits for one or takes one
	asking  int   // who waits or takes
	pending int   // who takes
}

// made is an answer. It implements http.ResponseWriter for who makes it.
type made struct {
	began  time.Time
	status int
	header http.Header
	body   bytes.Buffer
}

func (m *made) Header() http.Header         { return m.header }
func (m *made) WriteHeader(status int)      { m.status = status }
func (m *made) Write(b []byte) (int, error) { return m.body.Write(b) }

// ServeHTTP implements http.Handler.
func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := time.Now()
	s.count(1, 0)
	defer s.count(-1, 0)
	select {
	case s.turn <- struct{}{}:
	case <-r.Context().Done(): // whoever asked has gone
		return
	}
	s.count(0, 1)
	defer s.count(0, -1) // also if h panics
	m := s.take(asked, r)
	for name, values := range m.header {
		w.Header()[name] = values
	}
	w.WriteHeader(m.status)
	_, _ = w.Write(m.body.Bytes()) // whoever asked may have gone
}

// take returns the answer to a request, and gives the turn to the next one.
func (s *shared) take(asked time.Time, r *http.Request) *made {
	defer func() { <-s.turn }()
	s.mu.Lock()
	m := s.last
	fresh := m != nil && (m.began.After(asked) || s.pending > maxPending && asked.Sub(m.began) < reuse)
	s.mu.Unlock()
	if fresh {
		return m
	}
	m = &made{began: time.Now(), status: http.StatusOK, header: http.Header{}}
	s.h.ServeHTTP(m, r)
	s.mu.Lock()
	s.last = m
	s.mu.Unlock()
	return m
}

// count counts who asks and who takes, and forgets the last answer when nobody does.
func (s *shared) count(asking, pending int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking += asking
	s.pending += pending
	if s.asking == 0 {
		s.last = nil
	}
}
