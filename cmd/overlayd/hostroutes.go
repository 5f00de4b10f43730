package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// hostRoutesConfig and hostRoutes stand in for dataplane/hostroute until that is in the tree.
type hostRoutesConfig struct {
	Log               *slog.Logger
	Direct, Blackhole bool
	Resync            time.Duration
}

type hostRoutes struct{}

func openHostRoutes(hostRoutesConfig) (*hostRoutes, error) { return &hostRoutes{}, nil }

func (*hostRoutes) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	return w, nil
}

func (*hostRoutes) Run(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (*hostRoutes) Close() {}

func cleanupHostRoutes(...uint32) ([]string, error) { return nil, nil }
