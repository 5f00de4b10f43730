package overlay

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/dataplane"
)

// TestTrafficEndsLast: the dataplane goes on for as long as any other part needs to end.
func TestTrafficEndsLast(t *testing.T) {
	t.Parallel()
	lingers, f := make(chan struct{}), &told{carrying: carrying{&dummy{name: "forwarding", calls: new([]string)}}}
	part := &lingering{dummy{name: "rules", calls: new([]string)}, lingers}
	o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{
		{Name: part.name, Open: func() (dataplane.Part, error) { return part, nil }},
		{Name: "forwarding", Open: func() (dataplane.Part, error) { return NewForwarding(f, fit.Userspace, nil, func() {}), nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.Run(ctx) }()
	cancel()
	<-lingers
	if f.told.Load() {
		t.Error("the dataplane is told to end while another part still runs")
	}
	lingers <- struct{}{}
	if err := <-ended; err != nil || !f.told.Load() {
		t.Errorf("ended with %v, the dataplane was told: %v", err, f.told.Load())
	}
}

// TestKeptForwarding: a dataplane that is kept runs on when its overlay has ended, and ends with the next one, or when it is stopped.
func TestKeptForwarding(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		d := &told{carrying: carrying{&dummy{name: "forwarding", calls: new([]string)}}}
		back := 0
		f := NewForwarding(d, fit.Userspace, nil, func() { back++ })
		run := func(keep bool) {
			t.Helper()
			o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{{Name: "forwarding", Open: func() (dataplane.Part, error) { return f, nil }}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- o.Run(ctx) }()
			if keep {
				f.Keep()
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		run(true)
		if d.told.Load() || back > 0 || len(*d.calls) > 0 || !f.Kept() {
			t.Fatalf("the dataplane was told to end: %v, %v", d.told.Load(), *d.calls)
		}
		if stopped {
			if err := f.Stop(); err != nil {
				t.Error(err)
			}
		} else if !f.Taken() {
			t.Error("a dataplane that runs cannot be taken")
		} else {
			run(false)
		}
		if !d.told.Load() || back != 1 || f.Taken() {
			t.Errorf("stopped %v: the dataplane goes on", stopped)
		}
	}
}

// TestStopWithoutRun: what never ran can be stopped.
func TestStopWithoutRun(t *testing.T) {
	t.Parallel()
	d := &dummy{name: "forwarding", calls: new([]string)}
	f := NewForwarding(carrying{d}, fit.Userspace, nil, func() {})
	if err := f.Stop(); err != nil || len(*d.calls) != 1 {
		t.Errorf("%v, calls %v", err, *d.calls)
	}
}

// lingering is a part that needs long to end.
type lingering struct {
	dummy
	lingers chan struct{}
}

func (l *lingering) Run(ctx context.Context, _ func()) error {
	<-ctx.Done()
	l.lingers <- struct{}{}
	<-l.lingers
	return nil
}

// told is a dataplane that knows whether it was told to end.
type told struct {
	carrying
	told atomic.Bool
}

func (f *told) Run(ctx context.Context, _ func()) error {
	<-ctx.Done()
	f.told.Store(true)
	return nil
}
