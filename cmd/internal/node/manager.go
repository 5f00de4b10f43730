package node

import (
	"context"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// verdictPeriod is how often the service manager may be told another verdict: with many peers that takes milliseconds.
const verdictPeriod = 5 * time.Second

// tellOthers tells the service manager, until ctx ends or stop is called, how the daemon is (STATUS=), and that its loops
// come round (WATCHDOG=1), if it asks for that: it ends a daemon which it does not hear from. It tells stores of events.
func (d *Daemon) tellOthers(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	if d.cfg.Notify != nil {
		wait.Go(func() { d.tellVerdict(ctx) })
	}
	if d.cfg.Notify != nil && d.cfg.Watchdog > 0 {
		wait.Go(func() { d.feedWatchdog(ctx, d.cfg.Watchdog/3) })
	}
	wait.Go(func() { d.tellEvents(ctx) })
	return func() {
		cancel()
		wait.Wait()
	}
}

func (d *Daemon) tellVerdict(ctx context.Context) {
	told := ""
	for ok := true; ok; ok = pace.Sleep(ctx, verdictPeriod, nil) {
		text := control.Printable(status.Report(status.Process{}, d.Ready(), d.Status(), d.Endpoints()...).Verdict.String(), 512)
		if text != told {
			told = text
			d.manager.tell("STATUS=" + text)
		}
	}
}

// feedWatchdog tells the service manager that no loop is stuck, if that is so.
func (d *Daemon) feedWatchdog(ctx context.Context, period time.Duration) {
	for ok := true; ok; ok = pace.Sleep(ctx, period, nil) {
		stuck, err := d.pingLoops(ctx, period)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			d.manager.tell(sd.SdNotifyWatchdog)
		default:
			d.cfg.Log.Error("a loop of the daemon is stuck: the service manager is about to restart it", "network", stuck, "after", period, "err", err)
		}
	}
}

// pingLoops waits until the loop of each session has come round. stuck names the network of one that has not.
func (d *Daemon) pingLoops(ctx context.Context, patience time.Duration) (stuck string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, n := range d.expects.all() {
		if s := n.snapshot.Load().session; s != nil {
			if err := s.controller.Ping(ctx); err != nil {
				return n.name, err
			}
		}
	}
	return "", nil
}
