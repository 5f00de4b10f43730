package userspace

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

const tunPath = "/dev/net/tun"

var (
	// ErrNoTUN says that there is no usable /dev/net/tun.
	ErrNoTUN = errors.New("no usable " + tunPath)
	// ErrPermission says that CAP_NET_ADMIN is missing.
	ErrPermission = errors.New("CAP_NET_ADMIN is missing")
	// ErrDeviceBusy says that another process forwards for the device.
	ErrDeviceBusy = errors.New("another process has the device open")
)

// device is the overlay device in the kernel's eyes.
type device struct {
	conn  *rtnl.Conn
	name  string
	index int
	fresh bool // made by this process: it goes again if Open fails later on
}

// openDevice makes the persistent TUN device of that name, or finds the one that
// an earlier process left. A vxlan device of the kernel dataplane, or a TUN
// device with several queues, in its place is deleted.
func openDevice(log *slog.Logger, conn *rtnl.Conn, name string) (*device, error) {
	d := &device{conn: conn, name: name}
	if err := ensureNode(tunPath); err != nil {
		return nil, err
	}
	_, err := conn.Link(name)
	if d.fresh = errors.Is(err, rtnl.ErrNotFound); err != nil && !d.fresh {
		return nil, err
	}
	err = makeTUN(name, true)
	if errors.Is(err, unix.EINVAL) { // something else has the name
		d.fresh = true
		if err = d.clear(log); err == nil {
			err = makeTUN(name, true)
		}
	}
	if err != nil {
		return nil, err
	}
	l, err := conn.Link(name)
	if err != nil {
		return nil, err
	}
	d.index = l.Attrs().Index
	// What a router of the overlay announced would be a route that nobody wanted.
	_ = rtnl.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", "0") // no IPv6, or /proc/sys read-only: harmless
	return d, nil
}

// clear deletes the device that stands in the way, once it is certain that a TUN
// device can take its place.
func (d *device) clear(log *slog.Logger) error {
	l, err := d.conn.Link(d.name)
	if err != nil {
		return err
	}
	if t := l.Type(); t != "vxlan" && t != "tun" && t != "tuntap" {
		return fmt.Errorf("make TUN device %s: a device of type %s has this name; remove it (`ip link del %[1]s`)", d.name, t)
	}
	if err := makeTUN("", false); err != nil {
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

// ensureNode makes the TUN character device where a container lacks it.
func ensureNode(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // makeTUN's open tells what is wrong with it
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))) // Documentation/admin-guide/devices.txt
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w (%w); start the container with --device %[1]s", path, err, ErrNoTUN)
	}
	return nil
}

// makeTUN makes the single-queue TUN device of that name if there is none, says why
// if that cannot be, and lets go of it. An empty name takes any free one.
func makeTUN(name string, persist bool) error {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return openError(err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("make TUN device %q: name of more than 15 bytes: %w", name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return makeError(name, err)
	}
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

// openError says what to do where /dev/net/tun cannot be opened.
func openError(err error) error {
	fix := "start the container with --device " + tunPath
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		fix = "the kernel has no TUN support: modprobe tun"
	}
	return fmt.Errorf("open %s: %w (%w); %s", tunPath, ErrNoTUN, err, fix)
}

// makeError says what to do where the device cannot be made or attached to.
func makeError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("make TUN device %s: %w (%w); is another overlayd running on this host?", name, ErrDeviceBusy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("make TUN device %s: %w (%w); run as root, or start the container with --cap-add NET_ADMIN", name, ErrPermission, err)
	}
	return fmt.Errorf("make TUN device %s: %w", name, err)
}
