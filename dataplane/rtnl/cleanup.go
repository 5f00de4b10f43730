package rtnl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cleanup removes what overlayd left in the namespace, whichever dataplane made
// it: devices named flannel.*, flannel-v6.* or ovl.* that carry [Alias], with all that
// is on them, and routes of [RouteProtocol] elsewhere. It returns what it
// removed, in words, and removes all it can even where it returns an error. A
// second call finds nothing.
//
// Routes go first: for every nexthop that goes with its device and still has
// routes the kernel walks the whole routing table (6.18, 20 000 peers: 1.4 s in
// which nothing else can be configured on the machine).
func (c *Conn) Cleanup() (removed []string, err error) {
	var errs []error
	routes, err := c.ourRoutes(0)
	errs = append(errs, err)
	for _, r := range routes {
		// The library knows no nexthop objects: a route through one is matched without it.
		match := &netlink.Route{Dst: r.Dst, Protocol: r.Protocol, Priority: r.Priority, Scope: r.Scope, Table: r.Table}
		if err := c.h.RouteDel(match); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route %s: %w", r.Dst, err))
			continue
		}
		removed = append(removed, "route "+r.Dst.String())
	}
	links, err := c.Links()
	errs = append(errs, err)
	for _, l := range links {
		if !isOurs(l.Attrs()) {
			continue
		}
		if err := c.DeleteLink(l); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "device "+l.Attrs().Name)
	}
	return removed, errors.Join(errs...)
}

func isOurs(a *netlink.LinkAttrs) bool {
	for _, prefix := range []string{"flannel.", "flannel-v6.", TemporaryPrefix} {
		if strings.HasPrefix(a.Name, prefix) {
			return a.Alias == Alias
		}
	}
	return false
}
