package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// resyncPeriod is the time between two looks at the device, which others may have changed. If the looks would
// take more than one part in resyncShare of the time, they are rarer. With a route for each of 20 000
// subnets a look takes 60 ms.
const (
	resyncPeriod = 500 * time.Millisecond
	resyncShare  = 50
)

// Run implements dataplane.Part. It runs one goroutine for each sendWorker, one that checks the device
// twice a second, and those of the Port if it is not shared.
//
// When ctx ends, Run forwards until the goroutine that checks the device has ended, which may have to wait for the
// kernel. Then it returns within 100 ms. It logs a temporary read error and tries again. It returns an error when the
// device or a carrier is gone, or a shared Port has ended. Then the dataplane has to be opened again. The device, its addresses and
// its route stay, so that during a restart no packet of a pod leaves by the default route.
func (d *Dataplane) Run(ctx context.Context, _ func()) error {
	return errors.Join(pace.Last(ctx, d.lookAfter, d.carry), d.Close())
}

// lookAfter looks after the host.
func (d *Dataplane) lookAfter(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if w, ok := d.host.(watcher); ok {
		g.Go(func() error { return w.watch(ctx, d.repair) })
	}
	g.Go(func() error {
		tick := time.NewTicker(resyncPeriod)
		defer tick.Stop()
		return d.resync(ctx, tick.C)
	})
	g.Go(func() error {
		d.watchPaths(ctx)
		return nil
	})
	return g.Wait()
}

// pathsSoon is the time between two looks at the paths to peers while something is found out about one.
const pathsSoon = 20 * time.Millisecond

// watchPaths finds out what the paths to peers take, until ctx ends.
func (d *Dataplane) watchPaths(ctx context.Context) {
	for wait := resyncPeriod; ctx.Err() == nil; pace.Sleep(ctx, wait, nil) {
		wait = resyncPeriod
		if d.port.refresh(d.core.forwarding.Load()) {
			wait = pathsSoon
		}
	}
}

// carry forwards packets.
func (d *Dataplane) carry(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if d.shared {
		g.Go(func() error { return d.port.wait(ctx) })
	} else {
		g.Go(func() error { return d.port.Run(ctx) })
	}
	name := dataplane.DeviceName(d.vni())
	for i := range d.core.send {
		g.Go(func() error {
			select {
			case <-ctx.Done():
				return nil
			case <-d.entered:
			}
			return d.core.send[i].run(ctx, waitOut(d.log, "was "+name+" deleted?"))
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		for _, q := range d.host.queues() {
			q.stop()
		}
		return nil
	})
	return g.Wait()
}

// resync repairs the device and reports dropped sources at each tick, until ctx ends or the device has gone.
func (d *Dataplane) resync(ctx context.Context, tick <-chan time.Time) error {
	var rested time.Time // no look before this
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick:
			if isClosed(d.entered) {
				d.sources.report(now, d.core)
			}
			if now.Before(rested) {
				continue
			}
			began := time.Now()
			if err := d.repair(); err != nil {
				return err
			}
			if took := time.Since(began); took > resyncPeriod/resyncShare {
				rested = now.Add(resyncShare * took)
			}
		}
	}
}

// repair makes the device be as the last Sync left it. An error means that it has gone.
func (d *Dataplane) repair() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted == nil || !isClosed(d.entered) { // before that nobody reads what a route to the device leads there
		return nil
	}
	changes, err := d.syncHost()
	if errors.Is(err, device.ErrGone) {
		return err
	}
	d.report.Repaired(changes...)
	d.faults.Tell(d.log, errors.Join(d.refused, d.late, err))
	return nil
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

// transient reports whether a read that failed may succeed later. A system
// call's error is transient unless it means that the device or the socket is gone;
// the poller's errors, which have no errno, mean just that.
func transient(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EBADF, errBadFD, syscall.EFAULT, syscall.ENODEV, syscall.EINVAL, syscall.ENOTSOCK:
		return false
	}
	return true
}

// errBadFD is EBADFD of Linux, which a TUN device without its interface answers.
const errBadFD = syscall.Errno(77)
