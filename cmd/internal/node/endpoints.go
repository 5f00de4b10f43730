package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// A TCP port of the daemon that root or the daemon's own user has is a mistake of the operator, and ends the daemon. Any other user of
// the host can take it while no daemon runs, to keep one from starting: that one is waited out.

// endpoint is one of Config.Endpoints of a daemon that runs.
type endpoint struct {
	Endpoint

	mu       sync.Mutex
	listener net.Listener // nil: the port is not this daemon's
	stop     func()       // of what answers there
	held     bool         // the next daemon opens the port, not this one
	status   status.Endpoint
}

var errEndpointDied = errors.New("endpoint died")

// Endpoints returns how each endpoint is. It may be called at any time.
func (d *Daemon) Endpoints() (all []status.Endpoint) {
	for _, e := range d.endpoints {
		e.mu.Lock()
		all = append(all, e.status)
		e.mu.Unlock()
	}
	return all
}

// serveEndpoints answers at the endpoints until stop is called, also if not all of them could be opened. It calls fail
// if one of the servers dies before that.
func (d *Daemon) serveEndpoints(ctx context.Context, fail context.CancelCauseFunc) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	stop = func() {
		cancel()
		wait.Wait() // nothing is opened any more
		for _, e := range slices.Backward(d.endpoints) {
			if e.stop != nil {
				e.stop()
			}
		}
	}
	for _, e := range d.endpoints {
		err := d.open(e, e.Listen, fail)
		if taken := new(tcpport.TakenError); errors.As(err, &taken) && !taken.IsOurs() {
			d.noteTaken(e, taken, err)
			wait.Go(func() { d.waitForPort(ctx, e, fail) })
			continue
		}
		if err != nil {
			return stop, err
		}
	}
	return stop, nil
}

// open takes the listener that is left for e, or opens one, and answers there, unless the next daemon is to.
func (d *Daemon) open(e *endpoint, listen func() (net.Listener, error), fail context.CancelCauseFunc) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held {
		return nil
	}
	e.status.Tries++
	l, err := d.estate.Listen(e.At, listen)
	if err != nil {
		return err
	}
	e.listener = l
	e.status.Listening, e.status.Since, e.status.Err, e.status.Fix = true, time.Now(), "", ""
	e.stop = status.Serve(l, e.Handler(d), func(err error) {
		fail(fmt.Errorf("%w: %s: %w", errEndpointDied, e.At, err))
	})
	return nil
}

// noteTaken notes and logs who has the port of e.
func (d *Daemon) noteTaken(e *endpoint, taken *tcpport.TakenError, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.Err, e.status.Since = taken.Holder()+" has the port", time.Now()
	e.status.Fix = d.cfg.fix("", err)
	d.cfg.Log.Warn("another user has a TCP port of this daemon: trying again until it is free; all else goes on",
		append([]any{"endpoint", e.Name, "address", e.At, "holder", taken.Holder(), "uid", taken.UIDs()}, d.cfg.attrs("", err)...)...)
}

// waitForPort opens the port of e once it is free, unless ctx ends before that. Who has it is not looked for again: that reads all of /proc.
func (d *Daemon) waitForPort(ctx context.Context, e *endpoint, fail context.CancelCauseFunc) {
	again, began := pace.Backoff{Low: 100 * time.Millisecond, High: overlay.RetryPeriod}, time.Now()
	var notices pace.Notices
	for pace.Sleep(ctx, again.Next(), nil) {
		err := d.open(e, func() (net.Listener, error) { return net.Listen("tcp", e.At) }, fail)
		switch {
		case err != nil && !errors.Is(err, unix.EADDRINUSE):
			e.mu.Lock()
			e.status.Err, e.status.Fix = err.Error(), ""
			e.mu.Unlock()
			if due, _ := notices.Due(time.Now(), pace.Notice{Text: err.Error()}); len(due) > 0 {
				d.cfg.Log.WarnContext(ctx, "cannot listen at a TCP port of this daemon: trying again", append([]any{"endpoint", e.Name, "address", e.At}, d.cfg.attrs("", err)...)...)
			}
		case err == nil && e.isOpen():
			d.cfg.Log.InfoContext(ctx, "the TCP port is free: listening", "endpoint", e.Name, "address", e.At, "after", time.Since(began).Round(time.Millisecond))
			return
		}
	}
}

func (e *endpoint) isOpen() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listener != nil
}

// hold keeps e from opening its port from now on, which the next daemon does, and returns the listener that it has.
func (e *endpoint) hold() net.Listener {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = true
	return e.listener
}

// letGo ends hold: no daemon takes the place of this one.
func (e *endpoint) letGo() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = false
}

// exportEndpoints returns duplicates of the listeners, and keeps this daemon from opening more.
func (d *Daemon) exportEndpoints(add func([]carrier.Export, error), all bool) {
	for _, e := range d.endpoints {
		if l := e.hold(); l != nil && all {
			add(handover.ExportListener(l, e.At))
		}
	}
}
