package pace

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Last runs both functions until ctx ends or one of them returns an error, which it returns. The context of last ends
// only after rest has ended, which may take long: it may wait for a lock of the kernel that all network
// namespaces of the machine share.
func Last(ctx context.Context, rest, last func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	until, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group.Go(func() error { defer stop(); return rest(ctx) })
	group.Go(func() error { return last(until) })
	return group.Wait()
}
