package node

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// expected holds the networks that a daemon is to serve. It is not ready before it is known which
// they are, nor until each of them is.
type expected struct {
	mu       sync.Mutex
	known    bool // which networks there are
	networks map[string]*Network
}

func newExpected() *expected { return &expected{networks: map[string]*Network{}} }

// add expects a network from now on. The one that has no name is the only one.
func (e *expected) add(n *Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.networks[n.name] = n
	e.known = e.known || n.name == ""
}

// remove expects a network no longer, unless another of its name has taken its place.
func (e *expected) remove(n *Network) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.networks[n.name] == n {
		delete(e.networks, n.name)
	}
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

func (e *expected) status() []status.Network {
	networks := e.all()
	slices.SortFunc(networks, func(a, b *Network) int { return cmp.Compare(a.name, b.name) })
	out := make([]status.Network, 0, len(networks))
	for _, n := range networks {
		out = append(out, n.Status())
	}
	return out
}
