package leftovers

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// RemoveGuards removes the guards of these VNIs, and returns in words what it removed.
func RemoveGuards(vnis ...uint32) (removed []string, err error) {
	if len(vnis) == 0 { // guard.Cleanup would take that for all
		return nil, nil
	}
	return guard.Cleanup(vnis...)
}

// HaveSocket returns those VNIs whose vxlan devices have the socket that one with that port and GBP is to have: devices share it.
func HaveSocket(vnis []uint32, port uint16, gbp bool) (have []uint32, err error) {
	err = withDevices(func(d *ourDevices) error {
		links, err := d.rt.OurDevices()
		for _, l := range links {
			vni, _ := dataplane.DeviceVNI(l.Attrs().Name)
			x, ok := l.(*netlink.Vxlan)
			if ok && x.Attrs().RawFlags&unix.IFF_UP != 0 && x.Port == int(port) && x.GBP == gbp && slices.Contains(vnis, vni) && !slices.Contains(have, vni) {
				have = append(have, vni)
			}
		}
		return err
	})
	return have, err
}

// Remove removes what is left, but for what somebody else has made its own, and returns in words what it
// removed and kept. The guards stay: see RemoveGuards. Routes to subnets inside the networks of next stay, and so does what is unreachable around them: that session uses them, or removes them itself. It goes on after an error.
func Remove(ctx context.Context, l nodefile.Left, next ...netip.Prefix) (removed, kept []string, err error) {
	o, err := findOthers(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	done, err := removeLeft(ctx, l, o, next...)
	return done.removed, slices.Concat(done.keptLines(), done.missed), err
}

// removeLeft removes all of l but the guards, except what o says that others use.
func removeLeft(ctx context.Context, l nodefile.Left, o others, next ...netip.Prefix) (done report, err error) {
	if len(l.Networks) > 0 {
		var gerr error
		done.given, gerr = hostroute.Give(func(subnet netip.Prefix) bool { return rtnl.Inside(subnet, l.Networks) && o.needs(subnet) })
		_, rerr := hostroute.Cleanup(func(dst netip.Prefix, unreachable bool) bool {
			touches := func(networks []netip.Prefix) bool { // what is unreachable around a network is of a config before
				return rtnl.Inside(dst, networks) || unreachable && slices.ContainsFunc(networks, dst.Overlaps)
			}
			return touches(l.Networks) && !touches(next)
		})
		err = errors.Join(gerr, rerr)
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
	return done, errors.Join(err, merr, derr)
}

// removeAll removes what every overlayd has left in this network namespace, except what o says that others use.
func removeAll(ctx context.Context, o others) (done report, err error) {
	rules, err := masq.Cleanup(ctx)
	given, gerr := hostroute.Give(o.needs)
	done.given = given
	routes, rerr := hostroute.Cleanup(func(netip.Prefix, bool) bool { return true })
	done.removed = append(rules, routes...)
	derr := withDevices(func(d *ourDevices) error {
		if err := d.divide(func(string) bool { return true }, o); err != nil {
			return err
		}
		gone, err := kernel.Cleanup(d.isKept)
		done.removed = append(done.removed, gone...)
		return errors.Join(err, d.leave(ctx, &done))
	})
	guards, uerr := guard.Cleanup() // after the devices: a device without a guard lets in what it gets
	done.removed = append(done.removed, guards...)
	return done, errors.Join(err, gerr, rerr, derr, uerr)
}
