package hostroute

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// apply does ops in order and notes what came of them. Direct routes that the kernel
// refuses come by subnet, every other failure as err.
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

// netlink returns the route as the library has it.
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

// describe says in words what a host route is.
func describe(r netlink.Route) string {
	if r.Type == unix.RTN_BLACKHOLE {
		return fmt.Sprintf("blackhole %s", r.Dst)
	}
	return fmt.Sprintf("direct route %s via %s", r.Dst, r.Gw)
}

// Cleanup removes the host routes of every overlayd from the network namespace of the
// calling thread. It returns what it removed, in words, and removes all it can even
// where it returns an error. A second call finds nothing.
func Cleanup() (removed []string, err error) {
	rt, err := rtnl.Open()
	if err != nil {
		return nil, fmt.Errorf("clean up host routes: %w", err)
	}
	defer rt.Close()
	routes, err := rt.HostRoutes()
	errs := []error{err}
	for _, r := range routes {
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
