package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// maxEvents is how many notifications are kept until they are looked at. More
// of them count as one that anything may have changed.
const maxEvents = 1 << 14

func watchGroups() []int {
	return []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP}
}

// inbox holds the events that were read and not yet looked at, the last of each
// subject. The reader never waits for who looks: a Sync may take seconds, and the
// kernel's buffer is short.
type inbox struct {
	mu     sync.Mutex
	events map[subject]event
	err    error // why the reader ended
	signal chan struct{}
}

func newInbox() *inbox {
	return &inbox{events: map[subject]event{}, signal: make(chan struct{}, 1)}
}

func (b *inbox) put(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) >= maxEvents {
		clear(b.events)
		e = event{kind: dumpEvent}
	}
	b.events[e.subject()] = e
	b.notify()
}

// putBack puts in what was looked at and is to be looked at again, unless
// something later about the same has come.
func (b *inbox) putBack(events []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		if _, ok := b.events[e.subject()]; !ok {
			e.seen = true
			b.events[e.subject()] = e
			b.notify()
		}
	}
}

func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.notify()
}

func (b *inbox) notify() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

func (b *inbox) take() ([]event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := slices.Collect(maps.Values(b.events))
	clear(b.events)
	return events, b.err
}

// Run repairs what others do to the device and what is on it, within a second of a
// notification and every resync period without one, until ctx ends. It then
// returns nil and leaves everything in place. It ends before that with
// [ErrUnderlayGone], for the device cannot be made again without the link.
func (d *Dataplane) Run(ctx context.Context, _ func()) error {
	defer d.Close()
	in := newInbox()
	var reader sync.WaitGroup
	reader.Go(func() { d.read(in) })
	defer reader.Wait()
	// A deadline in the past ends the reader; after it, the reader is waited for.
	defer d.watch.file.SetReadDeadline(time.Unix(1, 0))

	tick := time.NewTicker(d.resync)
	defer tick.Stop()
	pace := newPace()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, _, err := d.repair(ctx, []event{{kind: dumpEvent}}); err != nil {
				return err
			}
		case <-in.signal:
			if !sleep(ctx, pace.wait(time.Now())) {
				return nil
			}
			events, err := in.take()
			if err != nil {
				return fmt.Errorf("watch the kernel: %w", err)
			}
			found, again, err := d.repair(ctx, events)
			if err != nil {
				return err
			}
			pace.note(found, time.Now())
			in.putBack(again)
		}
	}
}

// sleep waits, and reports false where ctx ended it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// read puts notifications into the inbox until its deadline passes. An overrun
// of the socket ends nothing: the socket goes on, and the state is read again.
func (d *Dataplane) read(in *inbox) {
	buf := make([]byte, 64<<10)
	for {
		n, err := d.watch.file.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			in.put(event{kind: dumpEvent})
			continue
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			in.fail(err)
			return
		}
		messages(buf[:n], func(h unix.NlMsghdr, body []byte) {
			for _, t := range d.tunnels {
				if e := classify(h, body, int(t.watched.Load()), d.overlay.batch.port); e != (event{}) {
					in.put(e)
				}
			}
		})
	}
}

// repair makes what was last wanted true again where an event shows that it is
// not. It returns what it found, and the events to look at once more; an error
// means that there is nothing more to be done.
func (d *Dataplane) repair(ctx context.Context, events []event) (found finding, again []event, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.closed {
		return nothing, nil, nil
	}
	v := d.overlay
	v.mended = false
	look, again := v.look(events)
	if !look {
		return nothing, again, nil
	}
	found = intact
	// What concerns single peers was told to Sync's caller.
	if _, err := dataplane.PeerErrors(d.sync(ctx, *d.last, false)); err != nil {
		found = altered
		if errors.Is(err, ErrUnderlayGone) {
			return found, nil, err
		}
		if ctx.Err() == nil {
			d.log.Warn("repair overlay device", "error", err)
		}
	}
	if v.mended {
		found = altered
	}
	return found, again, nil
}

// look reports whether the events give a reason to compare the kernel with what is
// wanted, and forgets what is remembered where this is in doubt. It returns the
// events that may yet turn out to be harmless.
func (v *overlay) look(events []event) (reason bool, again []event) {
	have := v.have
	for _, e := range events {
		switch {
		case e.kind == noEvent || e.index != 0 && !slices.Contains(v.links, e.index):
		case have == nil || e.kind == lookEvent:
			reason = true
		case !e.differs(have):
		case e.mayBeOwn():
			again = append(again, e)
		default:
			reason, v.have = true, nil
		}
	}
	return reason, again
}
