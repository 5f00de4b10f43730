package watch

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// Loop configures Run. Concerns and Forget are called by the
// goroutine that reads, which must not wait: the kernel's buffer is short. Look is called
// by the goroutine of Run.
type Loop struct {
	// Concerns reports whether a notification is a reason to look. body is without the
	// header, and must not be kept.
	Concerns func(h unix.NlMsghdr, body []byte) bool
	// Forget is called before a look for which no notification can be relied on: the kernel
	// dropped some, or Resync has passed. It may be nil.
	Forget func()
	// Look compares and repairs. An error ends Run.
	Look func(ctx context.Context) error
	// Spread decides how long to wait between a notification and the look.
	Spread pace.Spread
	// Resync is the time between two looks without a notification; 0: no such looks.
	Resync time.Duration
	// Pending reports whether something could not be made as wanted: then Look is called again after
	// RetryPeriod, because the obstacle may go without a notification. It may be nil.
	Pending func() bool
}

// RetryPeriod is the time between two tries of what somebody else stands in the way of. Tries that take long
// are made less often: they take a tenth of the time at most.
const RetryPeriod = 1500 * time.Millisecond

func (l *Loop) forget() {
	if l.Forget != nil {
		l.Forget()
	}
}

// Run looks whenever a notification or Wake asks for it, and every Resync, until ctx ends
// or the subscription is closed; it then returns nil. It returns the error of Look, or that
// of a socket that can no longer be read. The reader has ended when Run returns.
func (s *Subscription) Run(ctx context.Context, l Loop) error {
	failed := make(chan error, 1)
	var reader sync.WaitGroup
	reader.Go(func() { failed <- s.read(&l) })
	defer reader.Wait()
	defer s.file.SetReadDeadline(time.Unix(1, 0)) // in the past: it ends the reader
	return l.run(ctx, s.wake, failed)
}

// run is Run without the socket. failed tells why the reader ended.
func (l *Loop) run(ctx context.Context, wake <-chan struct{}, failed <-chan error) error {
	var resync <-chan time.Time
	if l.Resync > 0 {
		tick := time.NewTicker(l.Resync)
		defer tick.Stop()
		resync = tick.C
	}
	var due <-chan time.Time // nil: no look is planned
	retry := time.NewTimer(RetryPeriod)
	defer retry.Stop()
	if l.Pending == nil {
		retry.Stop()
	}
	for {
		retries := false
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-wake:
			if due == nil {
				due = time.After(l.Spread.Wait(time.Now()))
			}
			continue
		case <-retry.C:
			if retries = l.Pending(); !retries {
				retry.Reset(RetryPeriod)
				continue
			}
		case <-resync:
			l.forget()
		case <-due:
		}
		due = nil
		start := time.Now()
		if err := l.Look(ctx); err != nil {
			return err
		}
		now := time.Now()
		l.Spread.Note(now.Sub(start), now)
		if retries {
			retry.Reset(max(RetryPeriod, 10*now.Sub(start)))
		}
	}
}
