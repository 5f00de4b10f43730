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
