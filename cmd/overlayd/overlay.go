package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/masq"
)

// overlay is a network's dataplane together with what else its packets need on this
// host, traffic rules and routes that do not lead to the overlay device. For control
// it is one dataplane.
type overlay struct {
	dataplane.Dataplane
	log    *slog.Logger
	mode   string
	after  func() // to be called after Run of the dataplane
	routes *hostroute.Routes
	rules  *masq.Rules // nil where they cannot be and need not

	mustRules bool // the rules are asked for, and not only good to have

	mu        sync.Mutex // one Sync at a time
	last      *dataplane.Wanted
	rulesSaid string
}

// openOverlay opens all of it.
func (n *network) openOverlay(c control.Network, mtu int) (o *overlay, err error) {
	o = &overlay{log: n.log, mustRules: n.ipMasq, after: func() {}}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	o.rules, err = masq.Open(masq.Config{
		Log:         n.log,
		VNI:         c.Backend.VNI,
		Port:        c.Backend.Port,
		NFTables:    c.EnableNFTables,
		Masquerade:  n.ipMasq,
		Forward:     n.iptablesForward,
		RandomFully: !n.ipMasqNotRandom,
		Resync:      n.resync(),
	})
	if err != nil && o.mustRules {
		return o, err
	}
	o.sayRules(err)
	o.routes, err = hostroute.Open(hostroute.Config{
		Log:       n.log,
		Direct:    c.Backend.DirectRouting,
		Blackhole: n.ipBlackholeRoute,
		Resync:    n.resync(),
	})
	if err != nil {
		return o, err
	}
	dp, mode, after, err := n.openDataplane(c, mtu)
	if err != nil {
		return o, err
	}
	o.Dataplane, o.mode, o.after = dp, mode, after
	return o, nil
}

// Sync implements control.Overlay. The rules come first, for a packet that is routed
// by then has them, and the routes to direct peers before the dataplane gives up its own.
func (o *overlay) Sync(ctx context.Context, w dataplane.Wanted) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = &w
	return o.sync(ctx, w)
}

func (o *overlay) sync(ctx context.Context, w dataplane.Wanted) error {
	var errRules error
	if o.rules != nil {
		if _, errRules = o.rules.Sync(ctx, w); !o.mustRules {
			o.sayRules(errRules)
			errRules = nil
		}
	}
	w, errRoutes := o.routes.Sync(ctx, w)
	_, err := o.Dataplane.Sync(ctx, w)
	return errors.Join(errRules, errRoutes, err)
}

// sayRules says what keeps the rules from being written, where the overlay goes on without.
func (o *overlay) sayRules(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.rulesSaid {
		o.log.Warn("no forward rules: where the FORWARD policy of this host is DROP, pods are not reached",
			"err", err, "fix", "as the error says, or --iptables-forward-rules=false")
	}
	o.rulesSaid = text
}

// Run carries traffic and repairs until ctx ends.
func (o *overlay) Run(ctx context.Context) error {
	defer o.Close()
	group, ctx := errgroup.WithContext(ctx)
	again := make(chan struct{}, 1)
	group.Go(func() error { return o.Dataplane.Run(ctx, func() {}) })
	group.Go(func() error {
		return o.routes.Run(ctx, func() {
			select {
			case again <- struct{}{}:
			default:
			}
		})
	})
	group.Go(func() error { return o.resync(ctx, again) })
	if o.rules != nil {
		group.Go(func() error { return o.rules.Run(ctx, func() {}) })
	}
	return group.Wait()
}

// resync makes what was last wanted true again whenever routing has changed, until ctx
// ends. It tries again what fails, but for single peers: those the dataplane tries again.
func (o *overlay) resync(ctx context.Context, again <-chan struct{}) error {
	const shortest, longest = time.Second, 30 * time.Second
	pause := shortest
	var timer <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-timer:
		}
		peers, err := o.syncLast(ctx)
		timer = nil
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			o.log.Warn("routing has changed: trying again", "err", err, "in", pause)
			timer = time.After(pause)
			pause = min(2*pause, longest)
			continue
		case len(peers) > 0:
			o.log.Warn("routing has changed: peers are not reached", "peers", len(peers), "first", peers[0])
		}
		pause = shortest
	}
}

// syncLast is Sync of what was last wanted.
func (o *overlay) syncLast(ctx context.Context) (peers []*dataplane.PeerError, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		return nil, nil
	}
	return dataplane.PeerErrors(o.sync(ctx, *o.last))
}

// Close releases what openOverlay acquired; Run has done so. All that it made stays.
func (o *overlay) Close() {
	if o.rules != nil {
		o.rules.Close()
	}
	if o.routes != nil {
		o.routes.Close()
	}
	o.after()
}
