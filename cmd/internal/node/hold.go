package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// A network config under which this node's subnets do not fit would cost all pods of this host their addresses. It is applied only
// when it has stood for Config.ConfigHold: whoever writes it by mistake has the time to put the old one back. One that this host
// cannot carry at all ends no session, nor does one under which the node would have no lease, because somebody else gives it its
// subnets (control.Fitter): that is held until the node fits. All else is applied at once, unless configs follow one another: a session
// that ends as soon as it has begun follows no leases, and loses packets.

// held is what the store has in the place of the config in force. The zero value says that it has that one.
type held struct {
	network control.Network // zero: none that can be used
	since   time.Time
}

// unfit returns why a config has no place for the node's subnets; nil if it has, or the node has none.
func unfit(c control.Network, own []netip.Prefix) error {
	var v4, v6 netip.Prefix
	for _, p := range own {
		if p.Addr().Is6() {
			v6 = p
		} else {
			v4 = p
		}
	}
	if len(own) == 0 || control.Compatible(c, v4, v6) {
		return nil
	}
	return fmt.Errorf("the network config in the store, of %v, does not fit this node's subnets %v", c.Prefixes(), own)
}

const (
	// calm is how long a session lasts if configs do not follow one another.
	calm = 10 * time.Second
	// After atOnce sessions in a row that lasted less than calm, or one that lasted less than hasty, configs have to stand.
	atOnce, hasty = 3, 500 * time.Millisecond
	// The next config has to stand for firstStand before it is applied, and those after it for up to lastStand.
	firstStand, lastStand = 500 * time.Millisecond, 30 * time.Second
)

// follows says how long a config has to stand because others came shortly before it.
type follows struct {
	sessions int
	stand    time.Duration // of the next one
}

// noteEnd notes how long a session has lasted. outdated says that the store had another config then.
func (f *follows) noteEnd(lasted time.Duration, outdated bool) {
	switch {
	case lasted-f.stand >= calm: // a session also lasts while the config stands that ends it
		*f = follows{}
	case outdated && lasted >= hasty && f.sessions < atOnce:
		f.sessions++
	case outdated:
		f.stand = min(max(2*f.stand, firstStand), lastStand)
	}
}

var errChanges = errors.New("the network config changes again and again")

// forever says that a config is never applied, however long it stands.
const forever time.Duration = 0

// hold notes that c is not applied, and why, until it has stood for a time. It returns how much of that time is left; 0: none is left, or c is never applied.
func (n *Network) hold(ctx context.Context, c control.Network, why error, stand time.Duration) time.Duration {
	if stand == forever {
		n.noteHeld(c, why.Error(), forever)
		n.sayHold(ctx, "network config is not applied: this host cannot carry it", "err", why)
		return 0
	}
	until := n.noteHeld(c, why.Error(), stand)
	if time.Until(until) <= 0 {
		return 0
	}
	n.sayHold(ctx, "network config is not applied yet", "err", why,
		"until", until, "fix", "if it is not meant, put the one before back into the store until then")
	return time.Until(until)
}

// noteHeld notes why the store's config, zero if it has none that can be used, is not in force, and returns until when: for a time since
// it is there, or forever.
func (n *Network) noteHeld(c control.Network, why string, hold time.Duration) (until time.Time) {
	if n.held.network != c || n.held.since.IsZero() {
		n.held = held{c, time.Now()}
	}
	if hold > 0 {
		until = n.held.since.Add(hold)
	}
	n.heldStatus.Store(&status.HeldConfig{Networks: append([]netip.Prefix{}, c.Prefixes()...), Why: control.Printable(why, control.FaultBytes), Since: n.held.since, Until: until})
	return until
}

// noteUnusable notes why the store has no config that can be used. One that was held is held no longer. The store logs it.
func (n *Network) noteUnusable(err error) {
	n.noteHeld(control.Network{}, strings.TrimPrefix(err.Error(), control.ErrNoNetwork.Error()+": "), 0)
}

// askAgain is how soon the store is asked again whether it still has the config that is held.
const askAgain = time.Second

// heldStands reports whether the store has the config that is held now, and the node can have a lease in it. If the store does not
// answer, the config is held on: the session that is to apply the config would not get it.
func (n *Network) heldStands(ctx context.Context) bool {
	got, err := n.store.Network(ctx)
	if err != nil || got != n.held.network {
		return false
	}
	if err := n.nodeFits(ctx, got); err != nil {
		n.noteHeld(got, err.Error(), 0)
		return false
	}
	return true
}

// nodeFits returns why this node would have no lease in c; nil if the store chooses subnets itself.
func (n *Network) nodeFits(ctx context.Context, c control.Network) error {
	if f, ok := n.store.(control.Fitter); ok {
		return f.Fits(ctx, c)
	}
	return nil
}

// letGo notes that the store has the config in force, or the one that is about to be. back: it is in the store again.
func (n *Network) letGo(ctx context.Context, back bool) {
	if n.held == (held{}) {
		return
	}
	n.held = held{}
	n.heldStatus.Store(nil)
	if back {
		n.sayHold(ctx, "network config is again the one that is applied")
	}
}

// sayHold logs a line, once a minute at most: whoever writes configs to and fro does not fill the log.
func (n *Network) sayHold(ctx context.Context, text string, attrs ...any) {
	n.holdNotices.Repeat = time.Minute
	if due, _ := n.holdNotices.Due(time.Now(), pace.Notice{Text: text}); len(due) > 0 {
		n.log.WarnContext(ctx, text, attrs...)
	}
}

// holdAtStart returns why c is not applied yet by a daemon that starts with the subnet file of its last run; nil if it is.
func (n *Network) holdAtStart(ctx context.Context, c control.Network) error {
	own, _ := subnetfile.Read(n.subnetFile) // newController warns
	why := unfit(c, own)
	if why != nil && c != n.applied {
		if err := n.nodeFits(ctx, c); err != nil {
			n.noteHeld(c, err.Error(), 0)
			return carryError{err}
		}
		if _, ok := n.store.(control.Fitter); ok {
			why = nil // the node has other subnets by now: nothing is kept by waiting
		}
	}
	if why == nil || c == n.applied || n.cfg.ConfigHold <= 0 {
		if c != n.refused.network { // else whoever opens the dataplane decides
			n.letGo(ctx, false)
		}
		return nil
	}
	if left := n.hold(ctx, c, why, n.cfg.ConfigHold); left > 0 {
		return fmt.Errorf("%w: it is applied at %s if it still stands then", why, n.held.since.Add(n.cfg.ConfigHold).Format(time.TimeOnly))
	}
	return nil
}

// inForce notes that a session has begun with c.
func (n *Network) inForce(ctx context.Context, c control.Network) {
	n.applied = c
	if !n.recalled { // else the store may still have the one that is held
		n.letGo(ctx, false)
	}
}

// consider says whether a session with the config now takes over what the store has, or ends by it. If not, wait is when that is asked
// again; 0: never. What cannot be used ends no session: the next one could not begin. What is gone is tried to be put back then.
func (s *Session) consider(ctx context.Context, iface underlay.Interface, now control.Network, stored control.StoredNetwork) (apply bool, wait time.Duration) {
	n, next := s.network, stored.Network
	if stored.Err != nil {
		n.noteUnusable(stored.Err)
		if errors.Is(stored.Err, control.ErrNoNetwork) {
			return false, n.putConfigBack(ctx, now)
		}
		return false, 0
	}
	if changed(now, next, nil, nil) == nil && fit.CheckMTU(next, iface) == nil {
		n.letGo(ctx, true)
		return true, 0
	}
	host := n.host()
	host.Underlay = iface
	if host.Mode == fit.Auto && s.overlay != nil {
		host.Mode = s.overlay.Mode() // the other one did not work here
	}
	if err := n.carries(ctx, host, next); err != nil {
		n.hold(ctx, next, err, forever)
		return false, 0
	}
	own := s.ownSubnets()
	why := unfit(next, own)
	if why != nil || len(own) == 0 {
		if err := n.nodeFits(ctx, next); err != nil {
			n.hold(ctx, next, err, forever)
			return false, askAgain
		}
	}
	stand := n.cfg.ConfigHold
	if why == nil || stand <= 0 {
		why, stand = errChanges, n.follows.stand
	}
	if stand == 0 {
		n.letGo(ctx, false)
		return true, 0
	}
	return false, max(n.hold(ctx, next, why, stand), time.Nanosecond)
}

// putConfigBack writes the config in force into a store that has none any more, if it is the one that this daemon was given for an
// empty store. Another one would cost all hosts their subnets. It returns when to try again; 0: never.
func (n *Network) putConfigBack(ctx context.Context, inForce control.Network) time.Duration {
	w, ok := n.store.(control.ConfigWriter)
	if !ok || n.cfg.FirstConfig == nil {
		return 0
	}
	first, err := control.ParseNetwork(n.cfg.FirstConfig)
	if first.Backend.Missing = inForce.Backend.Missing; err != nil || first != inForce {
		n.sayHold(ctx, "network config is gone from the store, and not written again: the one that this daemon was given for an empty store is not the one in force",
			"fix", "put the one that is meant into the store")
		return 0
	}
	switch created, err := w.Init(ctx, n.cfg.FirstConfig); {
	case err != nil && ctx.Err() == nil:
		n.sayHold(ctx, "network config is gone from the store, and cannot be written now: trying again until it can", "err", err)
		return askAgain
	case created:
		n.configRepairs.Add(1)
		n.sayHold(ctx, "network config was gone from the store: written again", "value", string(n.cfg.FirstConfig))
	}
	return 0
}

// ownSubnets returns the subnets of the lease that this node has.
func (s *Session) ownSubnets() []netip.Prefix {
	if s.controller == nil {
		return nil
	}
	c := s.controller.Status()
	if !c.Held {
		return nil
	}
	return slices.DeleteFunc([]netip.Prefix{c.Lease.Subnet, c.Lease.IPv6Subnet}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// carries returns why this host cannot serve a config: no dataplane can, or every subnet that there could be would take something
// away that this host needs of its underlay.
func (n *Network) carries(ctx context.Context, h fit.Host, c control.Network) error {
	if err := h.Carries(c); err != nil || c.SubnetLen+c.IPv6SubnetLen == 0 {
		return err
	}
	u, err := fit.Needs(ctx, h.Underlay, n.reachesStore())
	if err != nil {
		return nil // newController's Acquire finds out
	}
	_, _, err = control.Allocate(c, control.Node{Underlay: u}, nil, func(int) int { return 0 })
	return err
}
