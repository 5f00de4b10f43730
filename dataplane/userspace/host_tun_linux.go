package userspace

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// tunHost is the host that is a TUN device of this machine's kernel.
type tunHost struct {
	device   *device.Device
	qs       []tunEnd
	mask     int // the offloads of TUNSETOFFLOAD that the device has
	coalesce bool
}

// tunEnd is a queue of a TUN device, which has a file to close.
type tunEnd interface {
	queue
	close()
}

// openTUN makes or finds the device and attaches to it. bound says that the sockets are bound
// already. After an error everything is as it was, but for a TUN device that was in the way.
func openTUN(cfg Config, headroom int, bound bool) (_ *tunHost, err error) {
	h := &tunHost{coalesce: cfg.Offloads.has(Coalesce)}
	mode := tun.Mode{Vnet: cfg.Offloads.has(TUNVnet), Multi: cfg.Offloads.has(TUNMultiqueue)}
	want := device.Config{Log: cfg.Log, VNI: cfg.VNI, Mode: mode, Replaces: cfg.Replaces}
	if !bound {
		want.Locals = cfg.locals()
	}
	if h.device, err = device.Open(want); err != nil {
		return nil, err
	}
	if err = h.attach(cfg, headroom); err == nil {
		err = h.device.Mark(cfg.MTU)
	}
	if err != nil {
		h.undo()
		return nil, err
	}
	return h, nil
}

// attach opens the queues.
func (h *tunHost) attach(cfg Config, headroom int) error {
	name, mode := h.device.Name(), h.device.Mode()
	if !mode.Vnet {
		q, err := attach(name, headroom)
		if err == nil {
			h.qs = append(h.qs, q)
		}
		return err
	}
	qs, mask, err := openQueues(name, mode, pairs(mode.Multi), headroom, cfg.Offloads)
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
	m := h.device.Mode()
	return []any{"tun_vnet", m.Vnet, "tun_mask", fmt.Sprintf("%#x", h.mask), "queues", len(h.qs), "coalesce", m.Vnet && h.coalesce}
}

// close implements host. A device that has not taken the place of its predecessors goes.
func (h *tunHost) close() error {
	h.closeQueues()
	h.device.Close()
	return nil
}

// undo is close, and takes away a device that openTUN made.
func (h *tunHost) undo() {
	h.closeQueues()
	h.device.Undo()
}

func (h *tunHost) closeQueues() {
	for _, q := range h.qs {
		q.close()
	}
}

// sync implements host.
func (h *tunHost) sync(w dataplane.Wanted) ([]dataplane.ObjectStatus, []dataplane.Change, error) {
	return h.device.Sync(w)
}

// watch implements watcher.
func (h *tunHost) watch(ctx context.Context, changed func()) error {
	return h.device.Watch(ctx, changed)
}

// predecessors implements successor.
func (h *tunHost) predecessors() []string { return h.device.Predecessors() }

// check implements successor.
func (h *tunHost) check(locals []netip.AddrPort) error { return h.device.Check(locals) }

// stop implements successor.
func (h *tunHost) stop(family int) error { return h.device.Stop(family == family6) }

// settle implements successor.
func (h *tunHost) settle(networks []netip.Prefix) error { return h.device.Settle(networks) }
