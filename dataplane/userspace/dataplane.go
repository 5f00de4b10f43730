package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

var errClosed = errors.New("Run has ended")

// Dataplane is the userspace dataplane. It implements dataplane.Dataplane.
type Dataplane struct {
	log       *slog.Logger
	core      *core
	device    *device
	queues    []tun // one for each pair of workers, as the receivers
	receivers []*udpReceiver
	ports     *sendPorts

	mu     sync.Mutex // of all below, and of changes to the device
	wanted *dataplane.Wanted
	closed bool
}

// tun is a queue on a TUN device. It ends with os.ErrDeadlineExceeded after stop.
type tun interface {
	queue
	stop()
	close()
}

// core is what forwards, without the device and the sockets.
type core struct {
	local   local
	public  netip.Addr
	table   atomic.Pointer[table]
	send    []sendWorker
	receive []receiveWorker // as many
}

// newCore makes n pairs of workers, without what they work on.
func newCore(cfg Config, n int) *core {
	c := &core{public: cfg.Public.Unmap(), send: make([]sendWorker, n), receive: make([]receiveWorker, n)}
	c.local = local{addr: cfg.Local.Unmap(), mac: dataplane.MAC(c.public, cfg.VNI), vni: cfg.VNI, port: cfg.Port}
	c.table.Store(new(table))
	for i := range n {
		c.send[i].table, c.receive[i].table = &c.table, &c.table
		c.receive[i].local = c.local
	}
	return c
}

// sync replaces the table.
func (c *core) sync(w dataplane.Wanted) error {
	t, err := newTable(c.local, w)
	c.table.Store(t)
	return err
}

// Open makes the TUN device flannel.<VNI>, or attaches to the one that an earlier
// process left, and binds the sockets. Before the first Sync a new device is down
// and without a route. Errors name their remedy; ErrNoTUN, ErrPermission and
// ErrDeviceBusy can be told apart. Run releases what Open acquired.
//
// Device and sockets belong to the network namespace of the calling thread.
func Open(cfg Config) (*Dataplane, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open userspace dataplane: %w", err)
	}
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	d := &Dataplane{log: cfg.Log}
	// The device comes first: a vxlan device in its place holds the UDP port.
	local := netip.AddrPortFrom(cfg.Local, cfg.Port)
	if d.device, err = openDevice(cfg.Log, conn, fmt.Sprintf("flannel.%d", cfg.VNI), local, cfg.Offloads); err != nil {
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

// open does what follows openDevice in Open.
func (d *Dataplane) open(cfg Config) error {
	pairs := 1
	if d.device.mode.multi {
		pairs = min(runtime.GOMAXPROCS(0), maxPairs)
	}
	d.core = newCore(cfg, pairs)
	mask, err := d.openQueues(cfg, pairs)
	if err != nil {
		return err
	}
	if err := d.device.conn.SetLink(d.device.index, cfg.MTU, rtnl.Alias, false); err != nil {
		return err
	}
	local := d.core.local
	var gro bool
	if d.receivers, gro, err = openReceivers(cfg.Log, netip.AddrPortFrom(local.addr, local.port), pairs, cfg.Offloads); err != nil {
		return err
	}
	if d.ports, err = openSendPorts(cfg.Log, local.addr, cfg.Offloads, cfg.DF); err != nil {
		return err
	}
	for i := range pairs {
		send, receive := &d.core.send[i], &d.core.receive[i]
		send.queue, send.sender = d.queues[i], newUDPSender(d.ports, local.addr)
		receive.queue, receive.receiver = d.queues[i], d.receivers[i]
	}
	cfg.Log.Info("offloads", "tun_vnet", d.device.mode.vnet, "tun_mask", fmt.Sprintf("%#x", mask), "queues", pairs,
		"udp_segment", d.ports.segments.Load(), "udp_gro", gro, "coalesce", d.device.mode.vnet && cfg.Offloads.has(Coalesce))
	return nil
}

// maxPairs bounds the pairs of workers, each of which has 5 MB of buffers.
const maxPairs = 8

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

// release closes what is open. The device stays.
func (d *Dataplane) release() {
	for _, q := range d.queues {
		q.close()
	}
	for _, r := range d.receivers {
		r.close()
	}
	if d.ports != nil {
		d.ports.close()
	}
}

// VTEPs implements dataplane.Dataplane. The MAC is always the derived one.
func (d *Dataplane) VTEPs() []dataplane.VTEP {
	return []dataplane.VTEP{{Addr: d.core.public, MAC: d.core.local.mac, VNI: d.core.local.vni}}
}

// Sync implements dataplane.Dataplane. The forwarding table is replaced first,
// whole, and then the device is made to have the MTU, the addresses and one route
// per overlay network; what is as wanted already is not written.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.MTU < minMTU || w.MTU > maxPacket {
		return fmt.Errorf("sync userspace dataplane: MTU %d is not in %d to %d", w.MTU, minMTU, maxPacket)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("sync userspace dataplane: %w", errClosed)
	}
	d.wanted = &w
	return errors.Join(d.core.sync(w), d.device.sync(w))
}

// sync makes the device as w says.
func (d *device) sync(w dataplane.Wanted) error {
	if err := d.conn.SetLink(d.index, w.MTU, rtnl.Alias, true); err != nil {
		return err
	}
	return errors.Join(
		d.conn.SetAddrs(d.index, w.Subnets, w.Networks),
		d.conn.SetRoutes(d.index, w.Networks),
	)
}

// Stats implements dataplane.Dataplane. A superpacket is one packet. Packets of the
// last few microseconds may be missing while a worker is busy.
func (d *Dataplane) Stats() dataplane.Stats {
	s := d.core.stats()
	for _, r := range d.receivers {
		s.Drops[dataplane.DropOverrun] += r.drops()
		s.Offload.RxBatches += r.batches.Load()
	}
	return s
}
