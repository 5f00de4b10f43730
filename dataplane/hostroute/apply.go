package hostroute

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// apply does ops in order and remembers which succeeded. It returns by subnet the direct routes
// that the kernel refused, and every other failure as err.
func (r *Routes) apply(ops []op) (refused map[netip.Prefix]error, err error) {
	var done []op
	var errs []error
	refused = map[netip.Prefix]error{}
	for _, o := range ops {
		switch err := r.do(o); {
		case err == nil:
			done = append(done, o)
		case o.verb != remove && !o.route.blackhole:
			refused[o.route.dst] = err
		default:
			errs = append(errs, err)
		}
	}
	if len(done) > 0 {
		r.have = applied(r.have, done)
	}
	return refused, errors.Join(errs...)
}

func (r *Routes) do(o op) error {
	h, nl := r.rt.Handle(), o.route.netlink()
	var err error
	switch o.verb {
	case add: // exclusive: somebody else's route is never replaced
		if err = h.RouteAdd(&nl); errors.Is(err, unix.EEXIST) {
			err = rtnl.ErrRouteTaken
		}
	case replace:
		err = h.RouteReplace(&nl)
	case remove:
		return r.rt.DeleteRoute(nl)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.verb, describe(nl), err)
	}
	return nil
}

// netlink converts to the library's route.
func (r route) netlink() netlink.Route {
	nl := netlink.Route{Dst: rtnl.IPNet(r.dst), Protocol: rtnl.RouteProtocol, Type: unix.RTN_UNICAST}
	if r.owner == flannel {
		nl.Protocol = unix.RTPROT_BOOT
	}
	if r.blackhole {
		nl.Type, nl.Priority = unix.RTN_BLACKHOLE, r.metric
		return nl
	}
	nl.Gw, nl.LinkIndex = r.hop.via.AsSlice(), r.hop.link
	return nl
}

// Kinds of objects, as Status and the log of repairs name them.
const (
	kindDirect    = "direct route"
	kindBlackhole = "blackhole"
)

// change returns o for the log.
func (o op) change() dataplane.Change {
	c := dataplane.Change{Op: dataplane.OpAdd, Kind: kindDirect, Key: o.route.dst.String(), Is: "via " + o.route.hop.via.String()}
	if o.route.blackhole {
		c.Kind, c.Is = kindBlackhole, fmt.Sprintf("metric %d", o.route.metric)
	}
	switch o.verb {
	case replace:
		c.Op = dataplane.OpReplace
	case remove:
		c.Op, c.Was, c.Is = dataplane.OpDelete, c.Is, ""
	}
	return c
}

// describe returns a host route in words.
func describe(r netlink.Route) string {
	switch r.Type {
	case unix.RTN_BLACKHOLE:
		return fmt.Sprintf("blackhole %s", r.Dst)
	case unix.RTN_UNREACHABLE:
		return fmt.Sprintf("unreachable route %s", r.Dst)
	}
	return fmt.Sprintf("direct route %s via %s", r.Dst, r.Gw)
}

// Give makes the direct routes to the subnets for which needs returns true plain ones, as flanneld makes them: somebody else needs
// them from now on. It returns them in words. A second call finds nothing.
func Give(needs func(subnet netip.Prefix) bool) (given []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("give direct routes: %w", err)
	}
	defer rt.Close()
	routes, err := rt.HostRoutes()
	errs := []error{err}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST || !needs(rtnl.Prefix(r.Dst)) {
			continue
		}
		plain := netlink.Route{Dst: r.Dst, Gw: r.Gw, LinkIndex: r.LinkIndex, Priority: r.Priority, Protocol: unix.RTPROT_BOOT, Type: r.Type}
		if err := rt.Handle().RouteReplace(&plain); err != nil {
			errs = append(errs, fmt.Errorf("give %s: %w", describe(r), err))
			continue
		}
		given = append(given, describe(r))
	}
	return given, errors.Join(errs...)
}

// Cleanup removes the host routes of every overlayd for which concerns returns true from the network namespace of
// the calling thread. It returns what it removed, in words, and removes as much as possible even
// if it returns an error. A second call finds nothing.
func Cleanup(concerns func(dst netip.Prefix, unreachable bool) bool) (removed []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("clean up host routes: %w", err)
	}
	defer rt.Close()
	routes, err := rt.HostRoutes()
	errs := []error{err}
	for _, r := range routes {
		if !concerns(rtnl.Prefix(r.Dst), r.Type == unix.RTN_UNREACHABLE) {
			continue
		}
		if err := rt.DeleteRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, describe(r))
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("clean up host routes: %w", err)
	}
	return removed, nil
}
