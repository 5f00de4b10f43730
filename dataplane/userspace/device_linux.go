package userspace

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// device is the overlay device in the kernel's eyes.
type device struct {
	conn  *rtnl.Conn
	name  string
	index int
	fresh bool // made by this process: it goes again if Open fails later on
	mode  tunMode

	vni    uint32
	locals []netip.AddrPort // that the sockets will be bound to; none if they are already
}

// tunMode is what has to be known of a TUN device to attach to it.
type tunMode struct {
	vnet  bool // every packet has a vnet header in front
	multi bool // it may have several queues
}

func (m tunMode) flags() uint16 {
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if m.vnet {
		flags |= unix.IFF_VNET_HDR
	}
	if m.multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	return flags
}

// openDevice makes the persistent TUN device of cfg's VNI, or finds the one that
// an earlier process left. A vxlan device of the kernel dataplane, or a TUN
// device of another mode, in its place is deleted. The mode is that of cfg.Offloads if the kernel has it, else the
// plain one. Nothing is deleted if somebody else has the UDP port that is yet to
// be bound.
func openDevice(cfg Config, conn *rtnl.Conn, bound bool) (*device, error) {
	name := dataplane.DeviceName(cfg.VNI)
	d := &device{conn: conn, name: name, vni: cfg.VNI}
	if !bound {
		d.locals = cfg.locals()
	}
	if err := ensureNode(tunPath); err != nil {
		return nil, err
	}
	l, err := conn.Link(name)
	if d.fresh = errors.Is(err, rtnl.ErrNotFound); err != nil && !d.fresh {
		return nil, err
	}
	if err == nil {
		err = checkFree(l)
	}
	if err == nil || d.fresh {
		d.mode, err = probeTUN(cfg.Offloads)
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
	err := makeTUN(d.name, d.mode, true)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if _, err := d.conn.Link(d.name); err == nil { // something else has the name
		d.fresh = true
		if err := d.clear(log); err != nil {
			return err
		}
		if err := makeTUN(d.name, d.mode, true); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	d.mode = tunMode{} // it claims to have vnet headers and queues, and refuses them
	return makeTUN(d.name, d.mode, true)
}

// checkFree reports whether another process is attached to a TUN device. The kernel
// lets any number attach to one of several queues, and deletes one in use.
func checkFree(l netlink.Link) error {
	tun, ok := l.(*netlink.Tuntap)
	switch {
	case !ok:
		return nil
	case tun.Flags&netlink.TUNTAP_MULTI_QUEUE == 0:
		err := makeTUN(l.Attrs().Name, tunMode{}, false)
		if errors.Is(err, unix.EINVAL) {
			return nil // a TAP device; it is in the way
		}
		return err
	case tun.Queues > 0:
		return makeError(l.Attrs().Name, unix.EBUSY)
	}
	return nil
}

// probeTUN returns the mode that offloads ask for, as far as the kernel has it.
func probeTUN(offloads Offloads) (m tunMode, err error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return m, openError(err)
	}
	defer unix.Close(fd)
	features, err := unix.IoctlGetUint32(fd, unix.TUNGETFEATURES)
	if err != nil {
		return m, nil // of before Linux 2.6.27, or of no Linux
	}
	m.vnet = offloads.has(TUNVnet) && features&unix.IFF_VNET_HDR != 0
	m.multi = m.vnet && offloads.has(TUNMultiqueue) && features&unix.IFF_MULTI_QUEUE != 0
	return m, nil
}

// clear deletes the device that stands in the way, once it is certain that a TUN
// device can take its place and the sockets can be bound.
func (d *device) clear(log *slog.Logger) error {
	l, err := d.conn.Link(d.name)
	if err != nil {
		return err
	}
	if t := l.Type(); t != "vxlan" && t != "tun" && t != "tuntap" {
		return &NameTakenError{Name: d.name, Type: t}
	}
	if err := makeTUN("", d.mode, false); err != nil {
		return err
	}
	if err := checkPort(d.conn, d.locals, d.name, d.nameV6()); err != nil {
		return err
	}
	log.Info("replacing device by a TUN device", "device", d.name, "type", l.Type())
	return d.conn.DeleteLink(l)
}

// clearV6 deletes the kernel dataplane's device for IPv6: the TUN device has both
// families' addresses and routes.
func (d *device) clearV6(log *slog.Logger) error {
	l, err := d.conn.Link(d.nameV6())
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if v, ok := l.(*netlink.Vxlan); !ok || v.VxlanId != int(d.vni) {
		return nil // somebody else's
	}
	if err := checkPort(d.conn, d.locals, d.name, d.nameV6()); err != nil {
		return err
	}
	log.Info("replacing device by a TUN device", "device", d.nameV6(), "type", l.Type())
	return d.conn.DeleteLink(l)
}

func (d *device) nameV6() string { return dataplane.DeviceNameV6(d.vni) }

// remove undoes openDevice.
func (d *device) remove() {
	if l, err := d.conn.Link(d.name); err == nil && d.fresh {
		_ = d.conn.DeleteLink(l) // the error that led here is the one to tell
	}
}

// ensureNode makes the TUN character device if a container lacks it.
func ensureNode(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // makeTUN's open tells what is wrong with it
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))) // Documentation/admin-guide/devices.txt
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w (%w)", path, err, ErrNoTUN)
	}
	return nil
}

// makeTUN makes the TUN device of that name if there is none, returns why if that
// is not possible, and lets go of it.
func makeTUN(name string, mode tunMode, persist bool) error {
	fd, err := attachTUN(name, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !persist {
		return nil
	}
	// Offloads outlive the process that asked for them; without a vnet header their
	// packets could not be told from ordinary ones.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0); err != nil {
		return fmt.Errorf("turn off offloads of %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make %s persistent: %w", name, err)
	}
	return nil
}

// openError tells why /dev/net/tun cannot be opened.
func openError(err error) error {
	why := ErrNoTUN
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		why = ErrNoModule
	}
	return fmt.Errorf("open %s: %w (%w)", tunPath, why, err)
}

// makeError tells why the device cannot be made or attached to.
func makeError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("make TUN device %s: %w (%w)", name, ErrDeviceBusy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("make TUN device %s: %w (%w)", name, ErrPermission, err)
	}
	return fmt.Errorf("make TUN device %s: %w", name, err)
}
