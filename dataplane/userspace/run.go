package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// resyncPeriod is how long a device that somebody changed behind our back may
// stay changed.
const resyncPeriod = time.Second

// Run implements dataplane.Dataplane: one goroutine for each sendWorker, one that looks
// after the device once a second, and those of the Port where it is not shared. It
// returns within 100 ms after ctx ended. A read error that may pass is logged and waited
// out; an error is returned when the device or the socket is gone or a shared Port has
// ended, after which the dataplane has to be opened anew. The device, its addresses and
// its route stay, so that a restart sends no packet of a pod out by the default route.
func (d *Dataplane) Run(ctx context.Context, _ func()) error {
	g, ctx := errgroup.WithContext(ctx)
	if d.shared {
		g.Go(func() error { return d.port.wait(ctx) })
	} else {
		g.Go(func() error { return d.port.Run(ctx) })
	}
	for i := range d.core.send {
		g.Go(func() error { return d.core.send[i].run(ctx, waitOut(d.log, "was "+d.device.name+" deleted?")) })
	}
	g.Go(func() error {
		tick := time.NewTicker(resyncPeriod)
		defer tick.Stop()
		d.resync(ctx, tick.C)
		for _, q := range d.queues {
			q.stop()
		}
		return nil
	})
	return errors.Join(g.Wait(), d.Close())
}

// Close implements dataplane.Part. The device, its addresses and its route stay.
func (d *Dataplane) Close() error {
	d.mu.Lock() // a Sync that goes on must not lose its connection
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.port.exit(d.core.vteps[0].VNI)
	d.release()
	d.device.conn.Close()
	return nil
}

// resync repairs the device at each tick, until ctx ends.
func (d *Dataplane) resync(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			if err := d.repair(); err != nil {
				d.log.Warn("resync of the overlay device", "device", d.device.name, "error", err)
			}
		}
	}
}

// repair makes the device be as the last Sync left it.
func (d *Dataplane) repair() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.port.refresh(d.core.table.Load())
	if d.wanted == nil {
		return nil
	}
	return d.device.sync(*d.wanted)
}

// onReadError is what a worker does about a failed read: it returns the error if
// that ends the worker.
type onReadError func(ctx context.Context, err error) error

// retryDelay keeps a read that fails again and again from taking the processor.
const retryDelay = 100 * time.Millisecond

// waitOut returns what one worker does: it logs an error that may pass, once as long as it stays
// the same, and waits a little. To other errors it adds a hint.
func waitOut(log *slog.Logger, hint string) onReadError {
	var notices pace.Notices
	return func(ctx context.Context, err error) error {
		if !transient(err) {
			return fmt.Errorf("%w (%s)", err, hint)
		}
		if report, _ := notices.Due(time.Now(), pace.Notice{Key: "read", Text: err.Error()}); len(report) > 0 {
			log.Warn("read failed, trying again", "err", err, "every", retryDelay)
		}
		pace.Sleep(ctx, retryDelay, nil)
		return nil
	}
}
