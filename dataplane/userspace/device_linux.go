package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/udp"
)

// device is the overlay device in the kernel's eyes.
type device struct {
	conn  *rtnl.Conn
	name  string // a temporary one as long as there are predecessors
	index int
	fresh bool // made by this process: it goes again if Open fails later on
	mode  tun.Mode

	old    []*netlink.Vxlan // predecessors: they forward until the first Sync (succeed_linux.go)
	others []string         // devices of other networks that are in the way of the sockets, likewise

	vni      uint32
	replaces func(vni uint32) bool
	locals   []netip.AddrPort // that the sockets will be bound to; none if they are already
}

// openDevice makes the persistent TUN device of cfg's VNI, or finds the one that
// an earlier process left. A TUN device of another mode in its place is deleted; the vxlan devices
// of the kernel dataplane stay until the device can take their place. The mode is that of
// cfg.Offloads if the kernel has it, else the plain one. Nothing is deleted if somebody else has
// the UDP port that is yet to be bound.
func openDevice(cfg Config, conn *rtnl.Conn, bound bool) (*device, error) {
	d := &device{conn: conn, name: dataplane.DeviceName(cfg.VNI), vni: cfg.VNI, replaces: cfg.Replaces}
	if !bound {
		d.locals = cfg.locals()
	}
	if err := tun.EnsureNode(tun.Path); err != nil {
		return nil, err
	}
	if err := d.findOld(); err != nil {
		return nil, err
	}
	name := d.name
	l, err := conn.Link(name)
	if d.fresh = errors.Is(err, rtnl.ErrNotFound); err != nil && !d.fresh {
		return nil, err
	}
	if err == nil {
		err = checkFree(l)
	}
	if err == nil || d.fresh {
		d.mode, err = tun.Probe(tun.Mode{Vnet: cfg.Offloads.has(TUNVnet), Multi: cfg.Offloads.has(TUNMultiqueue)})
	}
	if err != nil {
		return nil, err
	}
	if err := d.make(cfg.Log); err != nil {
		return nil, err
	}
	if l, err = conn.Link(name); err != nil {
		d.remove()
		return nil, err
	}
	d.index = l.Attrs().Index
	// What a router of the overlay announced would be a route that nobody wanted.
	_ = rtnl.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", "0") // no IPv6, or /proc/sys read-only: harmless
	return d, nil
}

// make makes the device, in place of another one if need be.
func (d *device) make(log *slog.Logger) error {
	err := tun.Make(d.name, d.mode, true)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if _, err := d.conn.Link(d.name); err == nil { // something else has the name
		d.fresh = true
		if err := d.clear(log); err != nil {
			return err
		}
		if err := tun.Make(d.name, d.mode, true); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	d.mode = tun.Mode{} // it claims to have vnet headers and queues, and refuses them
	return tun.Make(d.name, d.mode, true)
}

// checkFree reports whether another process is attached to a TUN device. The kernel
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
	case t.Queues > 0:
		return fmt.Errorf("make TUN device %s: %w", l.Attrs().Name, ErrDeviceBusy)
	}
	return nil
}

// clear deletes the device that stands in the way, once it is certain that a TUN
// device can take its place and the sockets can be bound.
func (d *device) clear(log *slog.Logger) error {
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
	if err := tun.Make("", d.mode, false); err != nil {
		return err
	}
	if err := udp.CheckPort(d.conn, d.locals, d.goes); err != nil {
		return err
	}
	log.Info("replacing device by a TUN device", "device", d.name, "type", l.Type())
	return d.conn.DeleteLink(l)
}

// remove undoes openDevice.
func (d *device) remove() {
	if l, err := d.conn.Link(d.name); err == nil && d.fresh {
		_ = d.conn.DeleteLink(l) // the error that led here is the one to tell
	}
}
