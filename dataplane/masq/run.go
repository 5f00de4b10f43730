package masq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// gather is the time between the first notification and the comparison, so
	// that one cause of many changes is one repair.
	gather = 100 * time.Millisecond
	// maxGather bounds how far comparisons are spread while changes go on.
	maxGather = 400 * time.Millisecond
)

// watch opens a socket that gets the notifications of nftables.
func watch() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		c.Close()
		return nil, fmt.Errorf("listen to nftables: %w", err)
	}
	return c, nil
}

// Run repairs what others do to the rules, until ctx ends or Close: within a second
// of a notification, and every resync period where there are none. It then returns
// nil and leaves the rules in place. It executes a process only to repair what
// iptables writes. It is called once.
func (r *Rules) Run(ctx context.Context, _ func()) error {
	r.running.Store(true)
	defer r.running.Store(false)
	failed := make(chan error, 1)
	var reader sync.WaitGroup
	reader.Go(func() { failed <- r.listen() })
	defer reader.Wait()
	// A deadline in the past ends the reader; after it, the reader is waited for.
	defer r.watch.SetReadDeadline(time.Unix(1, 0))

	tick := time.NewTicker(r.config.Resync)
	defer tick.Stop()
	pause, last := gather, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("watch nftables: %w", err)
		case <-tick.C:
			r.repair(ctx)
			continue
		case <-r.signal:
		}
		if time.Since(last) > 3*pause {
			pause = gather
		}
		if !sleep(ctx, pause) {
			return nil
		}
		r.repair(ctx)
		pause, last = min(2*pause, maxGather), time.Now()
	}
}

// sleep waits, and reports false where ctx ended it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// listen signals changes of tables that concern us until the socket's deadline
// passes. An overrun of the socket is a change like others.
func (r *Rules) listen() error {
	for {
		msgs, err := r.watch.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return err
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return err
		}
		concerns := err != nil
		for _, m := range msgs {
			concerns = concerns || namesOf(r.config.VNI).concern(m)
		}
		if concerns {
			r.wake()
		}
	}
}

// concern reports whether a notification is about a table that we write to.
func (n names) concern(m netlink.Message) bool {
	switch kind := int(m.Header.Type); kind &^ 0xff {
	case unix.NFNL_SUBSYS_NFTABLES << 8:
		switch kind & 0xff {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		default:
			return false
		}
	default:
		return false
	}
	if len(m.Data) < 4 || family(m.Data[0]) != ipv4 && family(m.Data[0]) != ipv6 {
		return false
	}
	table := ""
	err := decode(m.Data[4:], func(d *netlink.AttributeDecoder) {
		if d.Type() == unix.NFTA_TABLE_NAME { // and NFTA_CHAIN_TABLE, NFTA_RULE_TABLE
			table = d.String()
		}
	})
	return err == nil && (table == n.table || table == natTable || table == filterTable)
}

// repair makes what was last wanted true again.
func (r *Rules) repair(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted == nil {
		return
	}
	var errs []error
	for i, k := range r.keepers {
		wrote, err := k.apply(ctx, r.wanted[i])
		switch {
		case ctx.Err() != nil:
			r.finish(ctx, errs)
			return
		case err != nil:
			err = k.explain(err)
			errs = append(errs, err)
			if err.Error() != k.failed {
				r.config.Log.Warn("repair traffic rules", "error", err)
				k.failed = err.Error()
			}
			continue
		case wrote && k.failed != "":
			r.config.Log.Info("wrote the traffic rules that could not be written before", "family", k.family.String())
		case wrote:
			r.config.Log.Info("restored traffic rules that were changed by others", "family", k.family.String())
		}
		k.failed = ""
	}
	r.finish(ctx, errs)
}
