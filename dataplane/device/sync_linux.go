package device

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

const minMTU6 = 1280 // of IPv6 (RFC 8200 section 5)

// ErrMTU6 says that IPv6 was left out because the MTU is too small for it.
var ErrMTU6 = fmt.Errorf("IPv6 needs %d bytes: the overlay carries IPv4 only", minMTU6)

// Sync makes the device up, with its name and the MTU, addresses and routes that w wants. It returns the counts
// of what it keeps, and what it changed. The error is ErrGone if there is no device.
func (d *Device) Sync(w dataplane.Wanted) ([]dataplane.ObjectStatus, []dataplane.Change, error) {
	d.changes = nil
	conn, index := d.conn, d.index
	var noIPv6 error
	if w.MTU < minMTU6 {
		if noIPv6 = withoutIPv6(&w); noIPv6 != nil {
			noIPv6 = fmt.Errorf("sync %s: MTU %d: %w", d.name, w.MTU, noIPv6)
		}
	}
	kept := errors.Join(d.keepName(), d.keepOwner(), d.keepQueue())
	err := conn.SetLink(index, w.MTU, rtnl.Alias, true)
	if errors.Is(err, rtnl.ErrNotFound) {
		err = fmt.Errorf("%s: %w, deleted or moved to another network namespace: %w", d.name, ErrGone, err)
	}
	objects := []dataplane.ObjectStatus{object(rtnl.KindDevice, 1, err)}
	if err == nil {
		addrs := conn.SetAddrs(index, w.Subnets, w.Networks, w.Addrs...)
		var old []int
		for _, v := range d.old {
			old = append(old, v.Index)
		}
		want, changed, unreached := d.routes.wanted(conn, w, append(old, index))
		want.Over = old
		others := len(d.changes)
		routes := conn.SetRoutes(index, want)
		if changed { // these are no repairs
			d.changes = d.changes[:others]
		}
		objects = append(objects, object(rtnl.KindAddress, len(w.Subnets)+len(w.Addrs), addrs), object(rtnl.KindRoute, len(want.Whole)+len(want.Subnets), routes))
		err = errors.Join(kept, noIPv6, unreached, addrs, byPeer(w.Peers, routes))
	}
	return objects, d.changes, err
}

// keepName gives the device its name back if somebody else has renamed it: rules and settings go by it.
func (d *Device) keepName() error {
	l, err := d.conn.LinkByIndex(d.index)
	if err != nil || l.Attrs().Name == d.name {
		return nil // Sync finds out that it has gone
	}
	if err := d.takeName(d.name); err != nil {
		return err
	}
	d.changes = append(d.changes, dataplane.Change{Op: dataplane.OpReplace, Kind: rtnl.KindDevice, Key: d.name,
		Was: "name " + l.Attrs().Name, Is: "name " + d.name})
	return nil
}

// keepQueue makes the queue as long again as it has to be: one that somebody has set to 0 takes no packets.
func (d *Device) keepQueue() error {
	l, err := d.conn.LinkByIndex(d.index)
	if err != nil {
		return nil // Sync finds out that it has gone
	}
	return d.conn.SetQueue(l, d.leastQueue())
}

// object counts what is there of one kind after a step that returned err: each error that was
// joined to it is one object that is missing.
func object(kind string, wanted int, err error) dataplane.ObjectStatus {
	missing := 0
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		missing = len(joined.Unwrap())
	} else if err != nil {
		missing = wanted
	}
	return dataplane.ObjectStatus{Kind: kind, Wanted: wanted, Have: max(0, wanted-missing)}
}

// withoutIPv6 leaves out the addresses and networks that the kernel takes on no
// device of that MTU, so that those of IPv4 can be set, and returns an error if there are any.
func withoutIPv6(w *dataplane.Wanted) error {
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	n := len(w.Subnets) + len(w.Networks)
	w.Subnets = slices.DeleteFunc(slices.Clone(w.Subnets), is6)
	w.Networks = slices.DeleteFunc(slices.Clone(w.Networks), is6) // and with them the routes to peers' subnets
	w.Addrs = slices.DeleteFunc(slices.Clone(w.Addrs), is6)
	if len(w.Subnets)+len(w.Networks) == n {
		return nil
	}
	return ErrMTU6
}
