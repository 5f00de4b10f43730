package kernel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// maxEvents is how many notifications are kept until the next look. If there are more,
	// the whole state is read again.
	maxEvents = 1 << 14

	// gather is the time between the first sign of a change and the repair, so that
	// one cause of many changes is one repair.
	gather = 100 * time.Millisecond
	// maxPause bounds how far repairs are spread while somebody keeps undoing them.
	maxPause = 30 * time.Second
	// maxVain bounds how far looks are spread that find nothing to repair, for example
	// while so much is programmed that notifications are lost. It leaves time for an event
	// to be looked at twice within two seconds.
	maxVain = 400 * time.Millisecond
)

func watchGroups() watch.Groups {
	return watch.Groups{
		Protocol: unix.NETLINK_ROUTE,
		Must: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
			unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE},
		May: []int{unix.RTNLGRP_NEXTHOP}, // kernel 5.3
	}
}

// inbox holds the events since the last look, of each subject the last one. The reader
// never waits for the look: a Sync may take seconds, and the kernel's buffer is short.
type inbox struct {
	mu     sync.Mutex
	events map[subject]event
}

func newInbox() *inbox { return &inbox{events: map[subject]event{}} }

func (b *inbox) put(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) >= maxEvents {
		clear(b.events)
		e = event{kind: dumpEvent}
	}
	b.events[e.subject()] = e
}

// putBack returns events that are to be looked at once more, unless a later one about the
// same subject has come. It reports whether it kept any.
func (b *inbox) putBack(events []event) (kept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		if _, ok := b.events[e.subject()]; !ok {
			e.seen, kept = true, true
			b.events[e.subject()] = e
		}
	}
	return kept
}

func (b *inbox) take() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := slices.Collect(maps.Values(b.events))
	clear(b.events)
	return events
}

// Run repairs what others do to the device and what is on it, within a second of a
// notification and every resync period without one, until ctx ends. It then
// returns nil and leaves everything in place. It returns [ErrUnderlayGone] if the underlay
// link is gone: the device cannot be made again without it.
func (d *Dataplane) Run(ctx context.Context, _ func()) error {
	defer d.Close()
	in := newInbox()
	return d.watch.Run(ctx, watch.Loop{
		Concerns: func(h unix.NlMsghdr, body []byte) bool { return d.collect(in, h, body) },
		Forget:   func() { in.put(event{kind: dumpEvent}) },
		Look: func(ctx context.Context) (pace.Finding, error) {
			found, again, err := d.repair(ctx, in.take())
			if in.putBack(again) {
				d.watch.Wake()
			}
			return found, err
		},
		Spread: pace.Spread{Gather: gather, Intact: maxVain, Altered: maxPause},
		Resync: d.resync,
	})
}

// collect puts into the inbox what a notification means for each device, and reports
// whether it means anything.
func (d *Dataplane) collect(in *inbox, h unix.NlMsghdr, body []byte) (concerns bool) {
	for _, t := range d.tunnels {
		if e := classify(h, body, int(t.watched.Load()), d.program.batch.port); e != (event{}) {
			in.put(e)
			concerns = true
		}
	}
	return concerns
}

// repair makes what was last wanted true again if an event shows that it is not. It returns
// what it found, and the events to look at once more. An error means that Run must end.
func (d *Dataplane) repair(ctx context.Context, events []event) (found pace.Finding, again []event, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.closed {
		return pace.Nothing, nil, nil
	}
	p := d.program
	p.mended = false
	look, again := p.look(events)
	if !look {
		return pace.Nothing, again, nil
	}
	found = pace.Intact
	// The caller of Sync knows of the errors of single peers.
	if _, err := dataplane.PeerErrors(d.sync(ctx, *d.last, false)); err != nil {
		found = pace.Altered
		if errors.Is(err, ErrUnderlayGone) {
			return found, nil, err
		}
		if ctx.Err() == nil {
			d.log.Warn("repair overlay device", "err", err)
		}
	}
	if p.mended {
		found = pace.Altered
	}
	return found, again, nil
}

// look reports whether the events are a reason to compare the kernel with what is wanted,
// and forgets the remembered state if it may be wrong. It returns the events that may
// turn out to be harmless.
func (p *programmer) look(events []event) (reason bool, again []event) {
	have := p.have
	for _, e := range events {
		switch {
		case e.kind == noEvent || e.index != 0 && !slices.Contains(p.links, e.index):
		case have == nil || e.kind == lookEvent:
			reason = true
		case !e.differs(have):
		case e.mayBeOwn():
			again = append(again, e)
		default:
			reason, p.have = true, nil
		}
	}
	return reason, again
}
