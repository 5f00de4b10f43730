package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// Config says which device is wanted. Log is required.
type Config struct {
	Log      *slog.Logger
	VNI      uint32
	Mode     tun.Mode              // if the kernel has it, else the plain one
	Replaces func(vni uint32) bool // reports whether this process is going to carry that network too; may be nil
	Deaf     bool                  // for tests: look for routes of others only every few seconds
	Locals   []netip.AddrPort      // that UDP sockets will be bound to; empty if they are already
	Attached *tun.Mode             // not nil: the caller has all queues of the device, which has this mode
}

// Device is a TUN device with its addresses and routes. Its methods are not for concurrent use,
// except Watch.
type Device struct {
	conn  *rtnl.Conn
	name  string // a temporary one as long as there are predecessors
	index int
	fresh bool // made by this process: it goes again if Open fails later on
	alien bool // it has no owner, so the daemon replaces it
	mode  tun.Mode
	queue syscall.Conn // sets the owner of the device; nil before Use

	changes []dataplane.Change // of the Sync under way
	routes  *routing

	old    []*netlink.Vxlan // predecessors: they forward until the first Sync (succeed_linux.go)
	others []string         // devices of other networks that are in the way of the sockets, likewise

	vni      uint32
	replaces func(vni uint32) bool
	locals   []netip.AddrPort // that the sockets will be bound to; none if they are already
}

// Open makes the persistent TUN device of cfg's VNI, or finds the one that
// an earlier process left. A TUN device of another mode in its place is deleted; the vxlan devices
// of the kernel dataplane stay until the device can take their place. The mode is that of
// cfg.Mode if the kernel has it, else the plain one. Nothing is deleted if somebody else has
// the UDP port that is yet to be bound.
func Open(cfg Config) (*Device, error) {
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	d := &Device{conn: conn, name: dataplane.DeviceName(cfg.VNI), vni: cfg.VNI, replaces: cfg.Replaces, locals: cfg.Locals}
	conn.OnChange = func(c dataplane.Change) { d.changes = append(d.changes, c) }
	if d.routes, err = openRouting(cfg.Log, cfg.Deaf); err != nil {
		conn.Close()
		return nil, err
	}
	if err := d.open(cfg); err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// open finds or makes the device.
func (d *Device) open(cfg Config) error {
	if err := tun.EnsureNode(tun.Path); err != nil {
		return err
	}
	if err := d.findOld(); err != nil {
		return err
	}
	name := d.name
	l, err := d.conn.Link(name)
	if cfg.Attached != nil {
		if err != nil {
			return err
		}
		d.mode = *cfg.Attached
		d.found(l, cfg.Log)
		return nil
	}
	if d.fresh = errors.Is(err, rtnl.ErrNotFound); err != nil && !d.fresh {
		return err
	}
	if err == nil {
		if d.alien, err = d.unowned(l); err == nil && !d.alien {
			err = d.waitFree(l)
		}
	}
	if err == nil || d.fresh {
		d.mode, err = tun.Probe(cfg.Mode)
	}
	if err != nil {
		return err
	}
	if err := d.make(cfg.Log); err != nil {
		return err
	}
	if l, err = d.conn.Link(name); err != nil {
		d.remove()
		return err
	}
	d.found(l, cfg.Log)
	// What a router of the overlay announced would be a route that nobody wanted.
	_ = rtnl.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", "0") // no IPv6, or /proc/sys read-only: harmless
	return nil
}

// plainQueue is how many packets may wait in a device without vnet headers until they are read. Each is one packet there,
// where other devices hold 500 superpackets: 500 are less than one connection has under way, and on a
// busy machine all that come meanwhile are dropped.
const plainQueue = 4096

// vnetQueue is how many superpackets the kernel lets wait in a new device (TUN_READQ_SIZE).
const vnetQueue = 500

// found notes which device it is, and makes room for bursts.
func (d *Device) found(l netlink.Link, log *slog.Logger) {
	d.index = l.Attrs().Index
	d.routes.index = uint32(d.index)
	if err := d.conn.SetQueue(l, d.leastQueue()); err != nil {
		log.Warn("queue of the device not lengthened: a burst may lose packets while this process waits for a processor",
			"device", l.Attrs().Name, "length", l.Attrs().TxQLen, "wanted", d.leastQueue(), "err", err)
	}
}

func (d *Device) leastQueue() int {
	if d.mode.Vnet {
		return vnetQueue
	}
	return plainQueue
}

// make makes the device, in place of another one if need be.
func (d *Device) make(log *slog.Logger) error {
	if !d.fresh {
		err := error(unix.EINVAL)
		if !d.alien {
			err = tun.Make(d.name, d.mode, true)
		}
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
		d.fresh = true // something else has the name
		if err := d.clear(log); err != nil {
			return err
		}
	}
	err := d.makeNew(log)
	if errors.Is(err, unix.EINVAL) {
		d.mode = tun.Mode{} // the kernel claims to have vnet headers and queues, and refuses them
		err = d.makeNew(log)
	}
	return err
}

// busyPatience is how long Open waits for a device that another process has open. Whoever closes the device's queues,
// this process or its service manager, may have just forked a child, which has them until it runs its program.
const (
	busyPatience = 500 * time.Millisecond
	busyLook     = 5 * time.Millisecond
)

// waitFree is checkFree that gives the others some time.
func (d *Device) waitFree(l netlink.Link) error {
	deadline := time.Now().Add(busyPatience)
	for {
		err := checkFree(l)
		if !errors.Is(err, tun.ErrDeviceBusy) {
			return err
		}
		if time.Now().After(deadline) {
			if holder := tun.Holder(l.Attrs().Name); holder != "" {
				err = fmt.Errorf("%w: %s", err, holder)
			}
			return err
		}
		time.Sleep(busyLook)
		l, err = d.conn.Link(d.name)
		if d.fresh = errors.Is(err, rtnl.ErrNotFound); d.fresh {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// checkFree returns ErrDeviceBusy if another process is attached to a TUN device. The kernel
// lets any number attach to one of several queues, and deletes one in use.
func checkFree(l netlink.Link) error {
	t, ok := l.(*netlink.Tuntap)
	switch {
	case !ok:
		return nil
	case t.Flags&netlink.TUNTAP_MULTI_QUEUE == 0:
		err := tun.Make(l.Attrs().Name, tun.Mode{}, false)
		if errors.Is(err, unix.EINVAL) {
			return nil // a TAP device; it is in the way
		}
		return err
	case rtnl.TUNQueues(l) > 0:
		return fmt.Errorf("make TUN device %s: %w", l.Attrs().Name, tun.ErrDeviceBusy)
	}
	return nil
}

// clear deletes the device that stands in the way, once it is certain that a TUN
// device can take its place and the sockets can be bound.
func (d *Device) clear(log *slog.Logger) error {
	l, err := d.conn.Link(d.name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	if t := l.Type(); t != "tun" && t != "tuntap" {
		return &NameTakenError{Name: d.name, Type: t}
	}
	if err := tun.Make("", tun.Mode{Vnet: d.mode.Vnet}, false); err != nil { // of one queue: no other process can attach and keep it
		return err
	}
	if err := udp.CheckPort(d.conn, d.locals, d.goes); err != nil {
		return err
	}
	if d.alien {
		d.sayAlien(l, log)
	}
	log.Info("replacing device by a TUN device", "device", d.name, "type", l.Type())
	return d.conn.DeleteLink(l)
}

// Name returns the name of the device: a temporary one as long as there are predecessors.
func (d *Device) Name() string { return d.name }

// Mode returns the mode that the device has.
func (d *Device) Mode() tun.Mode { return d.mode }

// Mark marks the device as overlayd's and gives it that MTU. It stays down.
func (d *Device) Mark(mtu int) error { return d.conn.SetLink(d.index, mtu, rtnl.Alias, false) }

// Up brings the device up with that MTU: it takes packets, and nothing leads to it before Sync.
func (d *Device) Up(mtu int) error { return d.conn.SetLink(d.index, mtu, rtnl.Alias, true) }

// Watch calls changed when Sync is needed, until ctx ends or changed returns an error: when somebody else has changed the device, its
// addresses or its routes, or a route to one of the networks.
func (d *Device) Watch(ctx context.Context, changed func() error) error {
	return d.routes.run(ctx, changed)
}

// Close releases what Open acquired. The device stays, unless it has not yet taken the place of its
// predecessors.
func (d *Device) Close() {
	if len(d.old) > 0 {
		d.remove()
	}
	d.release()
}

// IsNew reports whether Open has made the device.
func (d *Device) IsNew() bool { return d.fresh }

// Undo is Close, and takes away a device that Open has made.
func (d *Device) Undo() {
	d.remove()
	d.release()
}

func (d *Device) release() {
	d.routes.notices.Close()
	d.conn.Close()
}

// remove takes away a device that Open has made.
func (d *Device) remove() {
	if l, err := d.conn.Link(d.name); err == nil && d.fresh {
		_ = d.conn.DeleteLink(l) // the error that led here is the one to tell
	}
}
