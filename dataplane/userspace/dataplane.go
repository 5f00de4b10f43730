package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

var errClosed = errors.New("Run has ended")

// Dataplane is the userspace dataplane. It implements dataplane.Dataplane.
type Dataplane struct {
	log      *slog.Logger
	core     *core
	device   *device
	queue    *tunQueue
	sender   *udpSender
	receiver *udpReceiver

	mu     sync.Mutex // of all below, and of changes to the device
	wanted *dataplane.Wanted
	closed bool
}

// core is what forwards, without the device and the sockets.
type core struct {
	local   local
	public  netip.Addr
	table   atomic.Pointer[table]
	send    sendWorker
	receive receiveWorker
}

func newCore(cfg Config) *core {
	c := &core{public: cfg.Public.Unmap()}
	c.local = local{addr: cfg.Local.Unmap(), mac: dataplane.MAC(c.public, cfg.VNI), vni: cfg.VNI, port: cfg.Port}
	c.table.Store(new(table))
	c.send.table, c.receive.table = &c.table, &c.table
	c.receive.local = c.local
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
	d := &Dataplane{log: cfg.Log, core: newCore(cfg)}
	// The device comes first: a vxlan device in its place holds the UDP port.
	if d.device, err = openDevice(cfg.Log, conn, fmt.Sprintf("flannel.%d", cfg.VNI)); err != nil {
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
func (d *Dataplane) open(cfg Config) (err error) {
	if d.queue, err = attach(d.device.name); err != nil {
		return err
	}
	if err := d.device.conn.SetLink(d.device.index, cfg.MTU, rtnl.Alias, false); err != nil {
		return err
	}
	local := d.core.local
	if d.receiver, err = openReceiver(cfg.Log, netip.AddrPortFrom(local.addr, local.port)); err != nil {
		return err
	}
	if d.sender, err = openSender(local.addr); err != nil {
		return err
	}
	send, receive := &d.core.send, &d.core.receive
	send.queue, send.sender = d.queue, d.sender
	receive.queue, receive.receiver = d.queue, d.receiver
	return nil
}

// release closes what is open. The device stays.
func (d *Dataplane) release() {
	if d.queue != nil {
		d.queue.close()
	}
	if d.receiver != nil {
		d.receiver.close()
	}
	if d.sender != nil {
		d.sender.close()
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
	s := stats(&d.core.send.counters, &d.core.receive.counters)
	s.Drops[dataplane.DropOverrun] += d.receiver.drops()
	return s
}
