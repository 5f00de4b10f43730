package userspace

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// gatePatience bounds how long the present networks wait for the others.
const gatePatience = 2 * time.Second

// gate makes datagrams in inherited sockets wait until all networks of the previous process are there. Datagrams for a
// network that is not there yet would be dropped.
type gate struct {
	log  *slog.Logger
	open chan struct{} // closed once nobody is awaited

	mu      sync.Mutex
	awaited []uint32
}

func newGate(cfg Config) *gate {
	g := &gate{log: cfg.Log, open: make(chan struct{})}
	if cfg.in != nil {
		g.awaited = slices.Clone(cfg.Awaited)
	}
	return g
}

// pass records that a network is there.
func (g *gate) pass(vni uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = slices.DeleteFunc(g.awaited, func(v uint32) bool { return v == vni })
	if len(g.awaited) == 0 && !isClosed(g.open) {
		close(g.open)
	}
}

// await returns when all networks are there, or after gatePatience.
func (g *gate) await(ctx context.Context) {
	select {
	case <-g.open:
	case <-ctx.Done():
	case <-time.After(gatePatience):
		g.mu.Lock()
		defer g.mu.Unlock()
		g.log.Warn("not all networks of the previous process are up: packets for the others are dropped until they are", "vni", g.awaited)
	}
}

// Still says that the end of Run is not a fault: the networks end by themselves. Until then no datagram is lost for the process
// that goes on with the exported sockets, and that process does not wait until the carriers are closed.
func (p *Port) Still() { p.still.Store(true) }
