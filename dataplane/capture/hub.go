package capture

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
)

const (
	// maxCaptures bounds how many captures there are at once.
	maxCaptures = 4
	// budget is what the rings of one capture take together at most, unless there are very many; memory that
	// nothing was written to is not taken from the system.
	budget  = 32 << 20
	minRing = 1 << 18 // several superpackets
	maxRing = 1 << 22
)

// ErrBusy says that there are as many captures as there may be.
var ErrBusy = errors.New("there are as many captures as there may be: end one of them")

// ErrEnded says that there will be no packets any more.
var ErrEnded = errors.New("the daemon is about to end")

// Hub brings Points and captures together: whichever comes later finds what is there. A nil Hub has no
// captures.
type Hub struct {
	mu       sync.Mutex
	members  []*member
	captures []*Capture
	closed   bool
}

// member is a Point that has joined.
type member struct {
	*Point
	vni   uint32
	sinks []sink
}

// publish shows the worker what listens now.
func (m *member) publish() {
	if len(m.sinks) == 0 {
		m.tap.Store(nil)
		return
	}
	m.tap.Store(&Tap{vni: m.vni, sinks: slices.Clone(m.sinks)})
}

// Join has captures listen at the Points of workers of a network, until leave is called; VNI 0: of all networks.
func (h *Hub) Join(vni uint32, points ...*Point) (leave func()) {
	if h == nil {
		return func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	joined := make([]*member, 0, len(points))
	for _, p := range points {
		m := &member{Point: p, vni: vni}
		for _, c := range h.captures {
			c.add(m)
		}
		m.publish()
		joined = append(joined, m)
	}
	h.members = append(h.members, joined...)
	return sync.OnceFunc(func() { h.leave(joined) })
}

func (h *Hub) leave(ms []*member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range ms {
		for _, s := range m.sinks {
			s.gone.Store(true)
		}
		m.sinks = nil
		m.publish()
	}
	h.members = slices.DeleteFunc(h.members, func(m *member) bool { return slices.Contains(ms, m) })
}

// Start begins a capture, which has to be closed. The error is ErrBusy or ErrEnded.
func (h *Hub) Start(f Filter) (*Capture, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ErrEnded
	case len(h.captures) == maxCaptures:
		return nil, ErrBusy
	}
	c := &Capture{hub: h, filter: f, ringSize: ringSize(len(h.members)), done: make(chan struct{})}
	h.captures = append(h.captures, c)
	for _, m := range h.members {
		c.add(m)
		m.publish()
	}
	return c, nil
}

// ringSize returns the size of each of n rings: a power of two.
func ringSize(n int) int {
	size := min(max(budget/max(n, 1), minRing), maxRing)
	return 1 << (bits.Len(uint(size)) - 1)
}

// Captures returns how many captures there are.
func (h *Hub) Captures() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.captures)
}

// Close ends all captures, and lets none begin.
func (h *Hub) Close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for len(h.captures) > 0 {
		h.end(h.captures[0])
	}
}

// end has nobody listen for c any more. Its reader may go on with what there is.
func (h *Hub) end(c *Capture) {
	i := slices.Index(h.captures, c)
	if i < 0 {
		return
	}
	h.captures = slices.Delete(h.captures, i, i+1)
	for _, m := range h.members {
		m.sinks = slices.DeleteFunc(m.sinks, func(s sink) bool { return s.capture == c })
		m.publish()
	}
	close(c.done)
}
