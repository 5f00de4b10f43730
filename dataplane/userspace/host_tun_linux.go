package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// tunHost is the host that is a TUN device of this machine's kernel.
type tunHost struct {
	device   *device
	qs       []tunEnd
	mask     int // the offloads of TUNSETOFFLOAD that the device has
	coalesce bool
	changes  []dataplane.Change // of the sync under way
	routes   *routing
}

// tunEnd is a queue of a TUN device, which has a file to close.
type tunEnd interface {
	queue
	close()
}

// openTUN makes or finds the device and attaches to it. bound says that the sockets are bound
// already. After an error everything is as it was, but for a TUN device that was in the way.
func openTUN(cfg Config, headroom int, bound bool) (_ *tunHost, err error) {
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	h := &tunHost{coalesce: cfg.Offloads.has(Coalesce)}
	conn.OnChange = func(c dataplane.Change) { h.changes = append(h.changes, c) }
	if h.routes, err = openRouting(cfg.Log); err != nil {
		conn.Close()
		return nil, err
	}
	if h.device, err = openDevice(cfg, conn, bound); err != nil {
		h.routes.notices.Close()
		conn.Close()
		return nil, err
	}
	if err = h.attach(cfg, headroom); err == nil {
		err = conn.SetLink(h.device.index, cfg.MTU, rtnl.Alias, false)
	}
	if err != nil {
		h.undo()
		return nil, err
	}
	return h, nil
}

// attach opens the queues.
func (h *tunHost) attach(cfg Config, headroom int) error {
	if !h.device.mode.Vnet {
		q, err := attach(h.device.name, headroom)
		if err == nil {
			h.qs = append(h.qs, q)
		}
		return err
	}
	qs, mask, err := openQueues(h.device.name, h.device.mode, pairs(h.device.mode.Multi), headroom, cfg.Offloads)
	for _, q := range qs {
		h.qs = append(h.qs, q)
	}
	h.mask = mask
	return err
}

// queues implements host.
func (h *tunHost) queues() (qs []queue) {
	for _, q := range h.qs {
		qs = append(qs, q)
	}
	return qs
}

// describe implements describer.
func (h *tunHost) describe() []any {
	m := h.device.mode
	return []any{"tun_vnet", m.Vnet, "tun_mask", fmt.Sprintf("%#x", h.mask), "queues", len(h.qs), "coalesce", m.Vnet && h.coalesce}
}

// close implements host. A device that has not taken the place of its predecessors goes.
func (h *tunHost) close() error {
	if len(h.device.old) > 0 {
		h.undo()
		return nil
	}
	for _, q := range h.qs {
		q.close()
	}
	h.routes.notices.Close()
	h.device.conn.Close()
	return nil
}

// watch implements watcher.
func (h *tunHost) watch(ctx context.Context, changed func()) error { return h.routes.run(ctx, changed) }

// undo is close, and takes away a device that openTUN made.
func (h *tunHost) undo() {
	for _, q := range h.qs {
		q.close()
	}
	h.device.remove()
	h.routes.notices.Close()
	h.device.conn.Close()
}

// sync implements host.
func (h *tunHost) sync(w dataplane.Wanted) ([]dataplane.ObjectStatus, []dataplane.Change, error) {
	h.changes = nil
	conn, index := h.device.conn, h.device.index
	var noIPv6 error
	if w.MTU < minMTU6 {
		if noIPv6 = withoutIPv6(&w); noIPv6 != nil {
			noIPv6 = fmt.Errorf("sync %s: MTU %d: %w", h.device.name, w.MTU, noIPv6)
		}
	}
	err := conn.SetLink(index, w.MTU, rtnl.Alias, true)
	objects := []dataplane.ObjectStatus{object(rtnl.KindDevice, 1, err)}
	if err == nil {
		addrs := conn.SetAddrs(index, w.Subnets, w.Networks, w.Addrs...)
		want, changed, unread := h.routes.wanted(conn, w)
		others := len(h.changes)
		routes := conn.SetRoutes(index, want)
		if changed { // these are no repairs
			h.changes = h.changes[:others]
		}
		objects = append(objects, object(rtnl.KindAddress, len(w.Subnets)+len(w.Addrs), addrs), object(rtnl.KindRoute, len(want.Whole)+len(want.Subnets), routes))
		err = errors.Join(noIPv6, unread, addrs, byPeer(w.Peers, routes))
	}
	return objects, h.changes, err
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
	return errMTU6
}
