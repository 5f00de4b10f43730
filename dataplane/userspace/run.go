package userspace

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// resyncPeriod is how long a device that somebody changed behind our back may
// stay changed.
const resyncPeriod = time.Second

// Run implements dataplane.Dataplane: one goroutine for each direction of each pair
// of workers, and one that looks after the device once a second. It returns within 100 ms after ctx
// ended. A read error that may pass is logged and waited out; an error is
// returned when the device or the socket is gone, after which the dataplane has to be
// opened anew. The device, its addresses and its route stay, so that a restart
// sends no packet of a pod out by the default route.
func (d *Dataplane) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range d.core.send {
		g.Go(func() error { return d.core.send[i].run(ctx, d.onReadError) })
		g.Go(func() error { return d.core.receive[i].run(ctx, d.onReadError) })
	}
	g.Go(func() error {
		tick := time.NewTicker(resyncPeriod)
		defer tick.Stop()
		d.resync(ctx, tick.C)
		for i := range d.queues {
			d.queues[i].stop()
			d.receivers[i].stop()
		}
		return nil
	})
	err := g.Wait()
	d.mu.Lock() // a Sync that goes on must not lose its connection
	defer d.mu.Unlock()
	d.closed = true
	d.release()
	d.device.conn.Close()
	return err
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
	d.ports.refresh(d.core.table.Load())
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

func (d *Dataplane) onReadError(ctx context.Context, err error) error {
	if !transient(err) {
		return fmt.Errorf("%w (was %s deleted?)", err, d.device.name)
	}
	d.log.Warn("read", "error", err, "retry", retryDelay)
	select {
	case <-ctx.Done():
	case <-time.After(retryDelay):
	}
	return nil
}
