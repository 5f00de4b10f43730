package kernel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// maxEvents is how many notifications are kept until the next look. If there are more,
	// the whole state is read again.
	maxEvents = 1 << 14

	// gather is the time between the first sign of a change and the repair, so that
	// one cause of many changes is one repair.
	gather = 10 * time.Millisecond
	// between is the time between two looks: the kernel does not tell who caused an event of a
	// neighbour or FDB entry, and the one that explains it has come by then.
	between = 100 * time.Millisecond
	// maxPause bounds how far looks are spread if they take long.
	maxPause = 500 * time.Millisecond
)

func watchGroups(deaf bool) watch.Groups {
	return watch.Groups{
		Protocol: unix.NETLINK_ROUTE,
		Must: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
			unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE},
		May:  []int{unix.RTNLGRP_NEXTHOP}, // kernel 5.3
		Deaf: deaf,
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
		Look: func(ctx context.Context) error {
			again, err := d.repair(ctx, in.take())
			if in.putBack(again) {
				d.watch.Wake()
			}
			return err
		},
		Spread:  pace.Spread{Gather: gather, Between: between, Rest: maxPause},
		Resync:  d.resync,
		Pending: d.pending.Load,
	})
}

// collect puts into the inbox what a notification means for each device, and reports
// whether it means anything.
func (d *Dataplane) collect(in *inbox, h unix.NlMsghdr, body []byte) (concerns bool) {
	for _, t := range d.tunnels {
		if e := classify(h, body, int(t.watched.Load()), d.program.batch.Port); e != (event{}) {
			in.put(e)
			concerns = true
		}
	}
	return concerns
}

// repair makes what was last wanted true again if an event shows that it is not, or if the kernel refused
// a part of it the last time. It returns the events to look at once more. An error means that Run must end.
func (d *Dataplane) repair(ctx context.Context, events []event) (again []event, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.closed {
		return nil, nil
	}
	look, again := d.program.look(events)
	if !look && !d.pending.Load() {
		return again, nil
	}
	err = d.sync(ctx, *d.last, false)
	if errors.Is(err, ErrUnderlayGone) {
		return nil, err
	}
	if ctx.Err() == nil {
		d.faults.Tell(d.log, err)
	}
	return again, nil
}

// look reports whether the events are a reason to compare the kernel with what is wanted,
// and forgets the remembered state if it may be wrong. It returns the events that may
// turn out to be harmless.
func (p *programmer) look(events []event) (reason bool, again []event) {
	have := p.have
	for _, e := range events {
		switch {
		case e.kind == noEvent || e.index != 0 && !slices.Contains(p.links, e.index):
		case e.kind == freeEvent:
			reason = reason || p.failed[e.about]
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
