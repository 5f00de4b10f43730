package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

var (
	errClosed = errors.New("Run has ended")
	errMTU6   = fmt.Errorf("IPv6 needs %d bytes: the overlay carries IPv4 only", minMTU6)
)

// Dataplane is the userspace dataplane. It implements dataplane.Dataplane.
type Dataplane struct {
	log    *slog.Logger
	core   *core
	device *device
	queues []tun // one for each sendWorker
	port   *Port
	shared bool // the port, by other networks; else Run runs it

	mu     sync.Mutex // of all below, and of changes to the device
	wanted *dataplane.Wanted
	closed bool
}

// tun is a queue on a TUN device. It ends with os.ErrDeadlineExceeded after stop.
type tun interface {
	queue
	writer
	// newWriter returns one more writer.
	newWriter() writer
	stop()
	close()
}

// core is what forwards, without the device and the sockets.
type core struct {
	locals [families]local
	vteps  []dataplane.VTEP
	table  atomic.Pointer[table]
	send   []sendWorker
	lanes  []*lane // one for each receiveWorker of the port
}

// newCore makes n sendWorkers, without what they work on.
func newCore(cfg Config, n int) *core {
	c := &core{locals: newLocals(cfg), send: make([]sendWorker, n)}
	for _, u := range cfg.Underlays {
		c.vteps = append(c.vteps, dataplane.VTEP{Addr: u.Public, MAC: c.locals[family(u.Local)].mac, VNI: cfg.VNI})
	}
	c.table.Store(new(table))
	for i := range n {
		c.send[i].table = &c.table
	}
	return c
}

// newLane makes the lane of a worker of that family.
func (c *core) newLane(family int, w writer) *lane {
	l := &lane{table: &c.table, writer: w, local: c.locals[family]}
	c.lanes = append(c.lanes, l)
	return l
}

// sync replaces the table.
func (c *core) sync(w dataplane.Wanted) error {
	t, err := newTable(c.table.Load(), &c.locals, w)
	c.table.Store(t)
	return err
}

// Open makes the TUN device flannel.<VNI>, or attaches to the one that an earlier
// process left, and binds the sockets, unless they are shared and bound already.
// Before the first Sync a new device is down and without a route. Errors name their
// remedy; ErrNoTUN, ErrPermission, ErrDeviceBusy and ErrVNITaken can be told apart.
// Run releases what Open acquired.
//
// Device and sockets belong to the network namespace of the calling thread.
func Open(cfg Config) (*Dataplane, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	d := &Dataplane{log: cfg.Log, port: cfg.Shared, shared: cfg.Shared != nil}
	if !d.shared {
		d.port = newPort(cfg)
	}
	if err := d.port.check(cfg.VNI); err != nil {
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	// The device comes first: a vxlan device in its place holds the UDP port.
	if d.device, err = openDevice(cfg, conn, d.port.isOpen()); err != nil {
		conn.Close()
		return nil, err
	}
	if err := d.open(cfg); err != nil {
		d.release()
		d.device.remove()
		conn.Close()
		return nil, err
	}
	return d, nil
}

// open does what follows openDevice in Open. The port is entered last: from then
// on it uses the queues.
func (d *Dataplane) open(cfg Config) error {
	multi := d.device.mode.multi
	d.core = newCore(cfg, pairs(multi))
	mask, err := d.openQueues(cfg, len(d.core.send))
	if err != nil {
		return err
	}
	if err := d.device.conn.SetLink(d.device.index, cfg.MTU, rtnl.Alias, false); err != nil {
		return err
	}
	// Last, so that a failure has not cost the kernel dataplane its device.
	if err := d.device.clearV6(cfg.Log); err != nil {
		return err
	}
	if err := d.port.enter(cfg.VNI, multi); err != nil {
		return err
	}
	for i := range d.core.send {
		d.core.send[i].queue = d.queues[i]
		d.core.send[i].senders = d.port.newSenders()
	}
	for i, w := range d.port.workers {
		q := d.queues[w.index%len(d.queues)]
		out := writer(q)
		if i >= len(d.queues) { // another worker has it
			out = q.newWriter()
		}
		w.attach(cfg.VNI, d.core.newLane(w.family, out))
	}
	cfg.Log.Info("offloads", "tun_vnet", d.device.mode.vnet, "tun_mask", fmt.Sprintf("%#x", mask), "queues", len(d.queues),
		"udp_segment", d.port.segments(), "udp_gro", d.port.gro, "coalesce", d.device.mode.vnet && cfg.Offloads.has(Coalesce))
	return nil
}

// openQueues attaches to the device and returns the offloads that it has.
func (d *Dataplane) openQueues(cfg Config, n int) (mask int, err error) {
	if !d.device.mode.vnet {
		q, err := attach(d.device.name)
		if err == nil {
			d.queues = append(d.queues, q)
		}
		return 0, err
	}
	qs, mask, err := openQueues(d.device.name, d.device.mode, n, cfg.Offloads)
	for _, q := range qs {
		d.queues = append(d.queues, q)
	}
	return mask, err
}

// release closes the queues. The device stays.
func (d *Dataplane) release() {
	for _, q := range d.queues {
		q.close()
	}
}

// VTEPs implements dataplane.Dataplane: one for each of Config.Underlays, in their
// order. The MACs are always the derived ones.
func (d *Dataplane) VTEPs() []dataplane.VTEP { return slices.Clone(d.core.vteps) }

// Sync implements dataplane.Dataplane. The forwarding table is replaced first,
// whole, and then the device is made to have the MTU, the addresses and one route
// per overlay network; what is as wanted already is not written.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	if err := ctx.Err(); err != nil {
		return w, err
	}
	if w.MTU < minMTU || w.MTU > maxPacket {
		return w, fmt.Errorf("sync userspace dataplane: MTU %d is not in %d to %d", w.MTU, minMTU, maxPacket)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return w, fmt.Errorf("sync userspace dataplane: %w", errClosed)
	}
	d.wanted = &w
	return w, errors.Join(d.core.sync(w), d.device.sync(w))
}

// Prune implements dataplane.Part: Sync has removed what is no longer wanted.
func (d *Dataplane) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (d *Dataplane) Status() dataplane.PartStatus {
	return dataplane.PartStatus{Name: "userspace", State: dataplane.StateOK}
}

// sync makes the device as w says.
func (d *device) sync(w dataplane.Wanted) error {
	if err := d.conn.SetLink(d.index, w.MTU, rtnl.Alias, true); err != nil {
		return err
	}
	var err error
	if w.MTU < minMTU6 {
		if err = withoutIPv6(&w); err != nil {
			err = fmt.Errorf("sync %s: MTU %d: %w", d.name, w.MTU, err)
		}
	}
	return errors.Join(err,
		d.conn.SetAddrs(d.index, w.Subnets, w.Networks, w.Addrs...),
		d.conn.SetRoutes(d.index, w.Networks),
	)
}

// withoutIPv6 leaves out the addresses and networks that the kernel takes on no
// device of that MTU, so that those of IPv4 can be set, and says so.
func withoutIPv6(w *dataplane.Wanted) error {
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	n := len(w.Subnets) + len(w.Networks)
	w.Subnets = slices.DeleteFunc(slices.Clone(w.Subnets), is6)
	w.Networks = slices.DeleteFunc(slices.Clone(w.Networks), is6)
	w.Addrs = slices.DeleteFunc(slices.Clone(w.Addrs), is6)
	if len(w.Subnets)+len(w.Networks) == n {
		return nil
	}
	return errMTU6
}

// Stats implements dataplane.Dataplane. A superpacket is one packet. Packets of the
// last few microseconds may be missing while a worker is busy. What a shared Port
// counts is in its own.
func (d *Dataplane) Stats() (s dataplane.Stats) {
	d.core.addTo(&s)
	if !d.shared {
		d.port.addTo(&s)
	}
	return s
}
