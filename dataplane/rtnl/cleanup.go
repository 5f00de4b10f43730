package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
)

// Cleanup removes what overlayd left in the namespace, whichever dataplane made
// it: devices named flannel.*, flannel-v6.* or ovl.* that carry [Alias], with all that
// is on them, and routes of [RouteProtocol] elsewhere. It returns what it
// removed, in words, and removes as much as possible even if it returns an error. A
// second call finds nothing. The devices of which spare returns true stay, with all that is on them.
func (c *Conn) Cleanup(spare func(index int) bool) (removed []string, err error) {
	var errs []error
	routes, err := c.ourRoutes()
	errs = append(errs, err)
	for _, r := range routes {
		if spare(r.LinkIndex) && !IsHostRoute(r) {
			continue
		}
		if err := c.DeleteRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "route "+r.Dst.String())
	}
	links, err := c.Links()
	errs = append(errs, err)
	for _, l := range links {
		if !isOurs(l.Attrs()) || spare(l.Attrs().Index) {
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

// OurDevices returns the devices that Cleanup would remove, if it spared none.
func (c *Conn) OurDevices() ([]netlink.Link, error) {
	links, err := c.Links()
	return slices.DeleteFunc(links, func(l netlink.Link) bool { return !isOurs(l.Attrs()) }), err
}

// Disown takes our marks off a device that somebody else uses from now on: [Alias], and the
// [RouteProtocol] of the addresses that we gave it, which stay.
func (c *Conn) Disown(l netlink.Link) error {
	a := l.Attrs()
	marked, err := c.markedAddrs(a.Index)
	errs := []error{err}
	for _, p := range marked {
		if err := c.putAddr(a.Index, p, nil); err != nil {
			errs = append(errs, fmt.Errorf("take the mark off address %s of %s: %w", p, a.Name, err))
		}
	}
	if a.Alias == Alias {
		if err := c.h.LinkSetAlias(l, ""); err != nil {
			errs = append(errs, fmt.Errorf("take the alias off %s: %w", a.Name, err))
		}
	}
	return errors.Join(errs...)
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
