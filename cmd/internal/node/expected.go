package node

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

// expected holds the networks that a daemon is to serve. It is not ready before it is known which
// they are, nor until each of them is.
type expected struct {
	mu       sync.Mutex
	known    bool // which networks there are
	networks map[string]*Network
	past     map[string]status.Totals // of networks that have gone: one that comes back goes on counting
	maxPast  int                      // that are remembered
}

// maxPast bounds how many networks that have gone are remembered, also by their node files: whoever writes the network configs names them.
const maxPast = 1 << 12

func newExpected() *expected {
	return &expected{networks: map[string]*Network{}, past: map[string]status.Totals{}, maxPast: maxPast}
}

// add expects a network from now on, whose counters go on from those of the one before it. The one that has no name is
// the only one.
func (e *expected) add(n *Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	past := e.past[n.name]
	if before := e.networks[n.name]; before != nil { // it is about to go
		past = before.snapshot.Load().totals()
	}
	n.snapshot.Store(&snapshot{ended: past})
	e.networks[n.name] = n
	e.known = e.known || n.name == ""
}

// begin is called before a network begins, when those of its name before it have gone.
func (e *expected) begin(n *Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if past, ok := e.past[n.name]; ok {
		n.snapshot.Store(&snapshot{ended: past})
	}
}

// skip is begin and remove of a network that has gone before it began.
func (e *expected) skip(n *Network) {
	e.begin(n)
	e.remove(n)
}

// remove expects a network no longer, unless another of its name has taken its place.
func (e *expected) remove(n *Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.remembers(n.name) {
		e.past[n.name] = n.snapshot.Load().totals()
	}
	if e.networks[n.name] == n {
		delete(e.networks, n.name)
	}
}

// remembers reports whether a network that goes is remembered. It is called with mu held.
func (e *expected) remembers(name string) bool {
	_, known := e.past[name]
	return known || len(e.past) < e.maxPast
}

// forgets reports whether nothing is remembered of a network that goes.
func (e *expected) forgets(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.remembers(name)
}

// complete notes that all networks that there are have been added.
func (e *expected) complete() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known = true
}

// all returns the networks.
func (e *expected) all() []*Network {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.networks))
}

func (e *expected) isKnown() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known
}

func (e *expected) ready() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		if !n.isReady() {
			return false
		}
	}
	return e.known
}

// unclaimed reports whether a network has not claimed a device yet.
func (e *expected) unclaimed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		if !n.claimed.Load() {
			return true
		}
	}
	return !e.known
}

// wait reports whether a network may still take over what the daemon before has left: the store has not said yet what it is. One whose device another
// daemon has cannot.
func (e *expected) wait() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.networks {
		fault := n.snapshot.Load().fault
		unusable := n.name != "" && fault != nil && (isUnusable(fault) || errors.As(fault, new(carryError)) || errors.As(fault, new(*claim.ServedError)))
		if !n.claimed.Load() && !unusable {
			return true
		}
	}
	return !e.known
}

func (e *expected) status() []status.Network {
	networks := e.all()
	slices.SortFunc(networks, func(a, b *Network) int { return cmp.Compare(a.name, b.name) })
	out := make([]status.Network, 0, len(networks))
	for _, n := range networks {
		out = append(out, n.Status())
	}
	return out
}
