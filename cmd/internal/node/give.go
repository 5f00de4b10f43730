package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// serveHandover lets another daemon take the place of this one, which serves n, until stop is called.
func (d *Daemon) serveHandover(n *Network) (stop func()) {
	s := handover.Serve(handover.Path(n.subnetFile), n.log, &d.giver, n.file.IsClaimed)
	d.giver.mu.Lock()
	defer d.giver.mu.Unlock()
	d.giver.servers = append(d.giver.servers, s)
	return func() {
		s.Stop()
		d.giver.forget(s)
	}
}

// LeaveToHeir reports whether Run has returned because another daemon goes on in the place of this one, and tells that one to go
// on although this process does not end.
func (d *Daemon) LeaveToHeir() bool {
	if !d.replaced.Load() {
		return false
	}
	d.giver.mu.Lock()
	defer d.giver.mu.Unlock()
	for _, s := range d.giver.servers {
		s.LetGo()
	}
	return true
}

// giver gives the place of a daemon to another one, once.
type giver struct {
	daemon   *Daemon
	patience time.Duration // with a Sync that runs

	mu     sync.Mutex
	given  bool
	unlock func() // called when Run has been told to end

	servers []*handover.Server // that have been asked, or may be
}

// forget drops a server that has stopped, unless it has given the place: the other daemon waits for this one's end.
func (g *giver) forget(s *handover.Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servers = slices.DeleteFunc(g.servers, func(other *handover.Server) bool { return other == s && !s.HasGiven() })
}

// errGiven says that a daemon is giving its place already.
var errGiven = errors.New("another process is taking its place already")

// Give implements handover.Giver. A kernel dataplane gives nothing: the kernel goes on forwarding. Nor does a daemon
// that is about to end anyway: whoever asks then only waits for its end.
func (g *giver) Give(q handover.Question) (l handover.Legacy, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.daemon
	for _, n := range d.expects.all() {
		if n.name != "" && len(q.Networks) > 0 && !slices.Contains(q.Networks, n.name) {
			return l, fmt.Errorf("it serves network %s too, which the other one would not", n.name)
		}
	}
	if g.given {
		return l, errGiven
	}
	sessions := d.expects.forwarding()
	unlock, err := d.run.Load().holdSyncs(sessions, g.patience)
	if errors.Is(err, errEnding) {
		g.given, g.unlock = true, func() {}
		return l, nil
	}
	if err != nil {
		return l, err
	}
	l = d.legacy(q, sessions)
	if err := l.CheckFit(len(d.expects.all())); err != nil {
		unlock()
		carrier.CloseExports(l.Exports)
		for _, e := range d.endpoints {
			e.letGo()
		}
		return handover.Legacy{}, err
	}
	g.given, g.unlock = true, unlock
	d.policy.hurry()
	d.ports.Still() // before any network on them goes: what comes for that one is the next daemon's
	for _, s := range sessions {
		s.stopForwarding()
	}
	if q.All { // the first daemons that could ask knew nothing of it
		d.bequeath(&l)
	}
	return l, nil
}

// legacy returns what this daemon leaves to the one that asks.
func (d *Daemon) legacy(q handover.Question, sessions []*Session) (l handover.Legacy) {
	add := func(exports []carrier.Export, err error) {
		if err != nil {
			d.cfg.Log.Warn("packets are lost until the next daemon forwards", "err", err)
		}
		l.Exports = append(l.Exports, exports...)
	}
	for _, s := range sessions {
		if e, ok := s.overlay.Forwarding().Dataplane.(carrier.Exporter); ok {
			add(e.Export())
		}
	}
	add(d.ports.Export())
	d.exportEndpoints(add, q.All)
	return l
}

// bequeath adds to l what this daemon no longer has then: locks, and what it keeps alive in the store.
func (d *Daemon) bequeath(l *handover.Legacy) {
	p, _ := d.estate.Identity()
	l.Nonce, l.Start = p.Nonce, p.Start
	for _, n := range d.expects.all() {
		s := n.snapshot.Load()
		if s.session == nil {
			continue
		}
		lock, err := n.file.HandOver()
		if err != nil {
			n.log.Warn("another process may claim the subnet file before the next daemon", "err", err)
		}
		l.Exports = append(l.Exports, lock...)
		l.Leases = append(l.Leases, s.session.controller.Status().Lease.Handle)
		if b, ok := s.store.(control.Bequeather); ok {
			l.Leases = append(l.Leases, b.Bequeath()...)
		}
	}
}

// Given implements handover.Giver: Run ends as at the end of its context, and returns err if there is one.
func (g *giver) Given(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		err = errReplaced
		g.daemon.cfg.Log.Info("another overlayd goes on: stopping")
	} else {
		err = fmt.Errorf("%w: %w", errNotReplaced, err)
	}
	g.daemon.run.Load().end(err)
	g.unlock()
}
