package leftovers

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/guard"
	"github.com/overlayd/overlayd/dataplane/hostroute"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// RemoveRules removes the traffic rules and guards of these VNIs, or of all if none is given, and returns in words what it
// removed. It goes on after an error.
func RemoveRules(ctx context.Context, vnis ...uint32) (removed []string, err error) {
	removed, err = masq.Cleanup(ctx, vnis...)
	guards, gerr := guard.Cleanup(vnis...)
	return append(removed, guards...), errors.Join(err, gerr)
}

// Remove removes what is left, but for what somebody else has made its own, and returns in words what it
// removed and kept. Routes to subnets inside the networks of next stay: that session uses them, or removes them itself. It goes on after an error.
func Remove(ctx context.Context, l nodefile.Left, next ...netip.Prefix) (removed, kept []string, err error) {
	o, err := findOthers(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	done, err := removeLeft(ctx, l, o, next...)
	return done.removed, slices.Concat(done.keptLines(), done.missed), err
}

// removeLeft removes all of l, except what o says that others use.
func removeLeft(ctx context.Context, l nodefile.Left, o others, next ...netip.Prefix) (done report, err error) {
	if len(l.Networks) > 0 {
		var gerr error
		done.given, gerr = hostroute.Give(func(subnet netip.Prefix) bool { return rtnl.Inside(subnet, l.Networks) && o.needs(subnet) })
		err = errors.Join(gerr, withdrawRoutes(ctx, l.Networks, next))
	}
	if len(l.VNIs) == 0 {
		return done, err
	}
	rules, merr := masq.Cleanup(ctx, l.VNIs...)
	done.removed = append(done.removed, rules...)
	concerns := func(name string) bool {
		vni, ok := dataplane.DeviceVNI(name)
		return ok && slices.Contains(l.VNIs, vni)
	}
	derr := withDevices(func(d *ourDevices) error {
		if err := d.divide(concerns, o); err != nil {
			return err
		}
		return errors.Join(d.remove(&done), d.leave(ctx, &done))
	})
	// The guard goes after the devices: a device without a guard lets in what it gets.
	guards, gerr := guard.Cleanup(l.VNIs...)
	done.removed = append(done.removed, guards...)
	return done, errors.Join(err, merr, derr, gerr)
}

// withdrawRoutes removes the direct routes and blackholes inside networks, less those inside next.
func withdrawRoutes(ctx context.Context, networks, next []netip.Prefix) error {
	r, err := hostroute.Open(hostroute.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer r.Close()
	var w dataplane.Wanted
	for _, n := range networks {
		w.Networks = append(w.Networks, without(n, next)...)
	}
	_, err = r.Sync(ctx, w)
	return errors.Join(err, r.Prune(ctx, w), hostroute.Withdraw(networks))
}

// without returns the part of p that is in none of others, as prefixes.
func without(p netip.Prefix, others []netip.Prefix) []netip.Prefix {
	if slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }) {
		return nil
	}
	if !slices.ContainsFunc(others, p.Overlaps) {
		return []netip.Prefix{p}
	}
	upper := p.Addr().AsSlice()
	upper[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	above, _ := netip.AddrFromSlice(upper) // it has the length of an address
	return append(without(netip.PrefixFrom(p.Addr(), p.Bits()+1), others), without(netip.PrefixFrom(above, p.Bits()+1), others)...)
}

// removeAll removes what every overlayd has left in this network namespace, except what o says that others use.
func removeAll(ctx context.Context, o others) (done report, err error) {
	rules, err := masq.Cleanup(ctx)
	given, gerr := hostroute.Give(o.needs)
	done.given = given
	routes, rerr := hostroute.Cleanup()
	done.removed = append(rules, routes...)
	derr := withDevices(func(d *ourDevices) error {
		if err := d.divide(func(string) bool { return true }, o); err != nil {
			return err
		}
		gone, err := kernel.Cleanup(d.isKept)
		done.removed = append(done.removed, gone...)
		return errors.Join(err, d.leave(ctx, &done))
	})
	guards, uerr := guard.Cleanup() // after the devices, as in removeLeft
	done.removed = append(done.removed, guards...)
	return done, errors.Join(err, gerr, rerr, derr, uerr)
}
