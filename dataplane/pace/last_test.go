package pace

import (
	"context"
	"errors"
	"testing"
)

// TestLast: what is last goes on for as long as the rest needs to end, and an error of either ends both.
func TestLast(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		cancel     bool
		rest, last error // that it returns, at once
		want       error
	}{
		"the context ends":  {cancel: true},
		"the rest ends":     {rest: broken, want: broken},
		"the last one ends": {last: broken, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			lingers, free, lastEnds, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan error, 1)
			rest := func(ctx context.Context) error {
				if c.rest != nil {
					close(lingers)
					<-free
					return c.rest
				}
				<-ctx.Done()
				close(lingers)
				<-free
				return nil
			}
			last := func(ctx context.Context) error {
				if c.last != nil {
					return c.last
				}
				<-ctx.Done()
				close(lastEnds)
				return nil
			}
			go func() { ended <- Last(ctx, rest, last) }()
			if c.cancel {
				cancel()
			}
			<-lingers
			select {
			case <-lastEnds:
				t.Error("the last one is told to end while the rest still runs")
			case err := <-ended:
				t.Errorf("ended with %v while the rest still runs", err)
			default:
			}
			close(free)
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("ended with %v, want %v", err, c.want)
			}
		})
	}
}
