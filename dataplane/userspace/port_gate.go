package userspace

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// gatePatience bounds how long networks that are there wait for the others.
const gatePatience = 2 * time.Second

// gate is where what comes to inherited sockets waits for the networks that the process before had: what comes for
// a network that is not there yet would be dropped.
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

// pass notes that a network is there.
func (g *gate) pass(vni uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = slices.DeleteFunc(g.awaited, func(v uint32) bool { return v == vni })
	if len(g.awaited) == 0 && !isClosed(g.open) {
		close(g.open)
	}
}

// await returns when all are there, or it has taken too long.
func (g *gate) await(ctx context.Context) {
	select {
	case <-g.open:
	case <-ctx.Done():
	case <-time.After(gatePatience):
		g.mu.Lock()
		defer g.mu.Unlock()
		g.log.Warn("not all networks of the process before are up: what comes for them is dropped until they are", "vni", g.awaited)
	}
}

// Still has the networks take the end of Run for no fault: they end by themselves. Until then nothing that comes
// is lost to whoever goes on with what was exported.
func (p *Port) Still() { p.still.Store(true) }
