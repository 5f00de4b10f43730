package pace

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Last runs both functions until both have ended, and returns the first error of them. The context of rest ends with
// ctx, or when last returns an error. That of last ends only when rest has ended, which may take seconds after ctx: rest
// may wait for a lock of the kernel that all network namespaces of the machine share.
func Last(ctx context.Context, rest, last func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	until, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group.Go(func() error { defer stop(); return rest(ctx) })
	group.Go(func() error { return last(until) })
	return group.Wait()
}
