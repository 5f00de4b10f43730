package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// RemoveTemporary removes, from the network namespace of the calling thread, the devices of a VNI that were to take
// the place of others: nobody finishes that after a crash, and they may hold the VNI and the port. It
// returns the names of those that it removed. No dataplane of this VNI may be open.
func RemoveTemporary(vni uint32) (removed []string, err error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, name := range TemporaryNames(vni) {
		gone, rerr := c.RemoveOurs(name)
		if err = errors.Join(err, rerr); gone {
			removed = append(removed, name)
		}
	}
	return removed, err
}

// isOurs reports whether a device is overlayd's. One with a temporary name is, also if its maker was killed before
// it marked it.
func isOurs(a *netlink.LinkAttrs) bool {
	return a.Alias == Alias && dataplane.IsDeviceName(a.Name) || (a.Alias == Alias || a.Alias == "") && isTemporaryName(a.Name)
}

// isTemporaryName reports whether overlayd gives devices that name for a while.
func isTemporaryName(name string) bool {
	rest, ok := strings.CutPrefix(name, TemporaryPrefix)
	vni, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimPrefix(rest, "6."), "t"), 10, 24)
	v := uint32(vni)
	return ok && err == nil && slices.Contains(TemporaryNames(v), name)
}
