package rtnl

import (
	"errors"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
)

// Cleanup removes what overlayd left in the namespace, whichever dataplane made
// it: devices named flannel.*, flannel-v6.* or ovl.* that carry [Alias], with all that
// is on them, and routes of [RouteProtocol] elsewhere. It returns what it
// removed, in words, and removes as much as possible even if it returns an error. A
// second call finds nothing.
func (c *Conn) Cleanup() (removed []string, err error) {
	var errs []error
	routes, err := c.ourRoutes()
	errs = append(errs, err)
	for _, r := range routes {
		if err := c.DeleteRoute(r); err != nil {
			errs = append(errs, err)
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

// RemoveOurs deletes the device of that name if it carries [Alias], and reports whether
// it did. It is not an error if there is no such device.
func (c *Conn) RemoveOurs(name string) (bool, error) {
	l, err := c.Link(name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil || !isOurs(l.Attrs()) {
		return false, err
	}
	return true, c.DeleteLink(l)
}

func isOurs(a *netlink.LinkAttrs) bool {
	return a.Alias == Alias && (dataplane.IsDeviceName(a.Name) || strings.HasPrefix(a.Name, TemporaryPrefix))
}
