package main

import (
	"context"
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	standByPeriod = 200 * time.Millisecond
	// standByPatience bounds how long the daemon that goes on may take to claim the subnet file.
	standByPatience = 15 * time.Second
	// standByDrained bounds how long whoever has drained the daemon to the kernel may take to have it stopped.
	standByDrained = 2 * time.Minute
)

// standBy returns when the daemon that goes on in the place of this one has ended, or ctx has. If it were not for this, kubelet
// would start this one again in the middle of a rolling update, and it would take its place back.
func standBy(ctx context.Context, c *node.Config) {
	c.Log.Info("standing by until the daemon that goes on ends")
	began, served := time.Now(), false
	for pace.Sleep(ctx, standByPeriod, nil) {
		switch now := isServed(c); {
		case now:
			served = true
		case served || time.Since(began) > standByPatience:
			c.Log.Info("no other daemon goes on any more")
			return
		}
	}
}

// isServed reports whether a daemon has a subnet file of this one's. What cannot be told counts as served.
func isServed(c *node.Config) bool {
	files := []string{c.SubnetFile}
	if c.OpenNetworks != nil {
		files = nodefile.SubnetFilesIn(c.SubnetDir)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		_, held, err := nodefile.Holder(file)
		return held || err != nil
	})
}
