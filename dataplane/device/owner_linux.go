package device

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// unowned reports whether every user who may open /dev/net/tun can attach to a TUN device, or might have done so: older
// versions gave it no owner. Whoever did may also have changed what the device does.
func (d *Device) unowned(l netlink.Link) (bool, error) {
	if _, ok := l.(*netlink.Tuntap); !ok {
		return false, nil
	}
	uid, err := d.conn.TUNOwner(l.Attrs().Index)
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	return uid < 0, err
}

// sayAlien logs why a TUN device is deleted.
func (d *Device) sayAlien(l netlink.Link, log *slog.Logger) {
	n, holder := rtnl.TUNQueues(l), tun.Holder(d.name)
	if n == 0 && holder == "" {
		log.Info("the TUN device of an earlier daemon has no owner, and every user could open it: it is made anew", "device", d.name)
		return
	}
	log.Warn("another process has the TUN device open, which has no owner, so that every user could: it is made anew, without that process",
		"device", d.name, "process", holder, "queues", n)
}

// makeTries bounds how often a device is made whose queues another process gets before the device has its owner. That process has to
// learn the name of the device and to attach between two system calls of this one.
const makeTries = 20

// errStranger says that another process was faster than the owner of a device.
var errStranger = errors.New("another process opens each TUN device before that has an owner")

// makeNew makes the device, which is missing, so that nobody else has a queue of it.
func (d *Device) makeNew(log *slog.Logger) (err error) {
	for range makeTries {
		err = tun.New(d.name, d.mode, func(name string) error {
			l, err := d.conn.Link(name)
			if err != nil {
				return err
			}
			if rtnl.TUNQueues(l) > 1 {
				log.Warn("another process has opened the new TUN device before it had an owner: another one is made", "device", name, "process", tun.Holder(name))
				return errors.Join(errStranger, d.conn.DeleteLink(l))
			}
			_, err = d.conn.Rename(l, d.name)
			return err
		})
		if !errors.Is(err, errStranger) {
			return err
		}
	}
	return fmt.Errorf("make TUN device %s: %w", d.name, err)
}

// Use says by which queue the owner of the device is set.
func (d *Device) Use(queue syscall.Conn) { d.queue = queue }

// keepOwner gives the device back to this process's user if somebody has given it to another, or an earlier daemon was another user's.
func (d *Device) keepOwner() error {
	uid, err := d.conn.TUNOwner(d.index)
	if err != nil || uid == os.Geteuid() || d.queue == nil {
		return nil // it is ours, or the kernel does not tell; if it has gone, Sync finds out
	}
	conn, err := d.queue.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(fd uintptr) { err = tun.Own(int(fd)) })
		err = errors.Join(cerr, err)
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", d.name, err)
	}
	d.changes = append(d.changes, dataplane.Change{Op: dataplane.OpReplace, Kind: rtnl.KindDevice, Key: d.name,
		Was: fmt.Sprintf("owner %d", uid), Is: fmt.Sprintf("owner %d", os.Geteuid())})
	return nil
}
