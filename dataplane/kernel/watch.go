package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

const (
	// gather is the time between the first sign of a change and the repair, so that
	// one cause of many changes is one repair.
	gather = 100 * time.Millisecond
	// maxPause bounds how far repairs are spread while somebody keeps undoing them.
	maxPause = 30 * time.Second
	// maxEvents is how many notifications are kept until they are looked at. More
	// of them count as one that anything may have changed.
	maxEvents = 1 << 14
)

func watchGroups() []int {
	return []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP}
}

// inbox holds the events that were read and not yet looked at. The reader never
// waits for who looks: a Sync may take seconds, and the kernel's buffer is short.
type inbox struct {
	mu     sync.Mutex
	events []event
	err    error // why the reader ended
	signal chan struct{}
}

func (b *inbox) put(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) >= maxEvents {
		b.events, e = b.events[:0], event{kind: dumpEvent}
	}
	b.events = append(b.events, e)
	b.notify()
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
	events := b.events
	b.events = nil
	return events, b.err
}

// Run repairs what others do to the device and what is on it, within a second of a
// notification and every resync period without one, until ctx ends. It then
// returns nil and leaves everything in place.
func (d *Dataplane) Run(ctx context.Context) error {
	defer d.Close()
	in := &inbox{signal: make(chan struct{}, 1)}
	var reader sync.WaitGroup
	reader.Go(func() { d.read(in) })
	defer reader.Wait()
	// A deadline in the past ends the reader; after it, the reader is waited for.
	defer d.watch.file.SetReadDeadline(time.Unix(1, 0))

	tick := time.NewTicker(d.resync)
	defer tick.Stop()
	pause, last := gather, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.repair(ctx, []event{{kind: dumpEvent}})
		case <-in.signal:
			if !sleep(ctx, pause) {
				return nil
			}
			events, err := in.take()
			if err != nil {
				return fmt.Errorf("watch the kernel: %w", err)
			}
			if time.Since(last) > 10*pause {
				pause = gather
			}
			if d.repair(ctx, events) {
				pause, last = min(2*pause, maxPause), time.Now()
			}
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
				if e := classify(h, body, int(t.watched.Load()), t.batch.port); e.kind != noEvent {
					in.put(e)
				}
			}
		})
	}
}

// repair makes what was last wanted true again where an event shows that it is
// not, and reports whether it had to look.
func (d *Dataplane) repair(ctx context.Context, events []event) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.closed {
		return false
	}
	look := false
	for _, t := range d.tunnels {
		for _, e := range events {
			if e.index != 0 && e.index != t.index {
				continue
			}
			if t.have == nil || e.kind == lookEvent {
				look = true
			} else if e.differs(t.have) {
				look, t.have = true, nil
			}
		}
	}
	if !look {
		return false
	}
	// What concerns single peers was told to Sync's caller.
	if err := d.sync(ctx, *d.last); !onlyPeers(err) && ctx.Err() == nil {
		d.log.Warn("repair overlay device", "error", err)
	}
	return true
}

// onlyPeers reports whether err consists of *dataplane.PeerError alone, or is nil.
func onlyPeers(err error) bool {
	switch e := err.(type) {
	case nil, *dataplane.PeerError:
		return true
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !onlyPeers(part) {
				return false
			}
		}
		return true
	}
	return false
}
