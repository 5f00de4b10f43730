package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// tunHost is the host on a TUN device of this machine's kernel.
type tunHost struct {
	device   *device.Device
	name     string // name of its queues for an export
	qs       []tunEnd
	mask     int      // the flags of TUNSETOFFLOAD that the device has
	offloads Offloads // the offloads that were asked for
}

// tunEnd is a queue of a TUN device, which has a file to close.
type tunEnd interface {
	queue
	source() *os.File
	close()
}

// openTUN makes or finds the device and attaches to it. unbound has the addresses to which sockets are still to be bound. After an error everything is
// as it was, except that a TUN device that was in the way is gone.
func openTUN(cfg Config, headroom int, unbound []netip.AddrPort) (_ *tunHost, err error) {
	h := &tunHost{name: inherit.QueueName(cfg.VNI), offloads: cfg.Offloads}
	mode := tun.Mode{Vnet: cfg.Offloads.has(TUNVnet), Multi: cfg.Offloads.has(TUNMultiqueue)}
	want := device.Config{Log: cfg.Log, VNI: cfg.VNI, Mode: mode, Replaces: cfg.Replaces, Deaf: cfg.Deaf}
	attached := cfg.in.Has(h.name)
	if attached {
		want.Attached = &cfg.in.Mode
	} else {
		want.Locals = unbound
	}
	if h.device, err = device.Open(want); err != nil {
		return nil, err
	}
	if err = h.attach(cfg, headroom); err == nil {
		h.device.Use(h.qs[0].source())
		if !attached {
			err = h.device.Mark(cfg.MTU)
		}
	}
	if err != nil {
		h.undo()
		return nil, err
	}
	return h, nil
}

// attach opens the queues, or takes inherited ones.
func (h *tunHost) attach(cfg Config, headroom int) error {
	name, mode, files := h.device.Name(), h.device.Mode(), cfg.in.Of(h.name)
	if !mode.Vnet {
		q, err := attach(name, headroom, files)
		if err == nil {
			h.qs = append(h.qs, q)
		}
		return err
	}
	qs, mask, err := openQueues(name, mode, pairs(mode.Multi), headroom, cfg.Offloads, files)
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

// Describe implements carrier.Describer.
func (h *tunHost) Describe() []any {
	m := h.device.Mode()
	return []any{"tun_vnet", m.Vnet, "tun_mask", fmt.Sprintf("%#x", h.mask), "queues", len(h.qs), "coalesce", m.Vnet && h.offloads.has(Coalesce)}
}

// close implements host. It removes a device that has not taken the place of its predecessors.
func (h *tunHost) close() error {
	h.closeQueues()
	h.device.Close()
	return nil
}

// undo does what close does, and also removes a device that openTUN made.
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

// isNew implements newcomer.
func (h *tunHost) isNew() bool { return h.device.IsNew() }

// watch implements watcher.
func (h *tunHost) watch(ctx context.Context, changed func() error) error {
	return h.device.Watch(ctx, changed)
}

// predecessors implements successor.
func (h *tunHost) predecessors() []string { return h.device.Predecessors() }

// check implements successor.
func (h *tunHost) check(locals []netip.AddrPort) error { return h.device.Check(locals) }

// prepare implements successor.
func (h *tunHost) prepare(mtu int) error { return h.device.Up(mtu) }

// stop implements successor.
func (h *tunHost) stop(family int) error { return h.device.Stop(family == carrier.Family6) }

// settle implements successor.
func (h *tunHost) settle(networks []netip.Prefix) error { return h.device.Settle(networks) }
