package kernel

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

func watchGroups() []int {
	return []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP}
}

// Run compares the kernel with what is wanted, every resync period, until ctx ends.
func (d *Dataplane) Run(ctx context.Context) error {
	defer d.Close()
	tick := time.NewTicker(d.resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.repair(ctx)
		}
	}
}

// repair makes what was last wanted true again, whatever somebody else did.
func (d *Dataplane) repair(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		return
	}
	for _, t := range d.tunnels {
		t.have = nil
	}
	err := d.sync(ctx, *d.last)
	var peer *dataplane.PeerError
	if err != nil && ctx.Err() == nil && !errors.As(err, &peer) { // peers' errors are told by Sync
		d.log.Warn("resync", "error", err)
	}
}
