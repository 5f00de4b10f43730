package guard

import (
	"context"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// Forwards says who forwards from the next Sync on: the kernel, which is so unless this says something else, or this process.
// Names are those that the overlay devices of the kernel have besides the usual ones, while this process forwards too.
func (g *Guard) Forwards(kernel bool, names ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kernel, g.cfg.extra = kernel, names
}

// Relax admits packets that are not encapsulated, until the guard of the next session has settled: the network config changes.
func (g *Guard) Relax() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.relaxed = time.Now().Add(time.Hour)
	if g.synced && !g.failed.Load() {
		g.faults.Tell(g.cfg.Log, g.ensure(g.wanted))
	}
}

// Rewrite makes the rules for w alone true at once, after [Guard.Forwards].
func (g *Guard) Rewrite(w dataplane.Wanted) error {
	if _, err := g.Sync(context.Background(), w); err != nil {
		return err
	}
	return g.Prune(context.Background(), w)
}

// Switched removes the rules if Config.Off says so, or writes them again.
func (g *Guard) Switched() error {
	if g.cfg.Check == dataplane.SourceOff {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.synced && !g.isOff() {
		return nil // the first Sync writes them
	}
	return g.ensure(g.wanted)
}

func (g *Guard) isOff() bool { return g.cfg.Off != nil && g.cfg.Off() }

// remove removes the rules of a guard that is switched off. The caller holds mu.
func (g *Guard) remove() error {
	g.books.keep(g.name)
	_, err := Cleanup(g.cfg.VNI)
	if err != nil {
		return err
	}
	g.books.restart()
	g.members.lost()
	g.chains, g.there = nil, false
	g.open.Store(true)
	g.failed.Store(false)
	g.cfg.Synced()
	g.report.Publish(dataplane.StateDegraded, errOff)
	return nil
}

// IsOff reports whether there is no check of sources: by Config, or because it was switched off.
func (g *Guard) IsOff() bool { return g.isOff() || g.cfg.Check == dataplane.SourceOff }
