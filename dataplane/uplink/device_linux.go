package uplink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/tun"
)

const (
	namePattern = "ovl.up%d"
	tablePrefix = "overlayd-"
	chain       = "out"
	// sendBuffer bounds the bytes that were written and have not left this host. It is as large as that of one socket.
	sendBuffer = 8 << 20
	noAddress  = 1 // IN6_ADDR_GEN_MODE_NONE of linux/if_link.h
)

// device is the TAP device and the table of its frames.
type device struct {
	name  string
	index int
	file  *os.File
	conn  syscall.RawConn
	hops  nft.Hops
	rules *nft.Held
}

// openDevice uses the device of cfg.Inherited, and closes that file. If it cannot, it makes a device.
func openDevice(c *rtmsg.Conn, cfg Config) (_ *device, err error) {
	d := &device{hops: nft.Hops{Family: nft.IPv4}}
	if cfg.Local.Is6() {
		d.hops.Family = nft.IPv6
	}
	if given := cfg.Inherited; given != nil {
		if d.file, d.name, err = tun.TakeTunnelTAP(given, namePattern, sendBuffer); err != nil {
			cfg.Log.Info("uplink of the previous daemon not used: this one makes its own", "err", err)
			go given.Close() // see close
		} else {
			given.Close() // this process has a duplicate
		}
	}
	if d.file == nil {
		if d.file, d.name, err = tun.OpenTunnelTAP(namePattern, sendBuffer); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.conn, err = d.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("open %s: %w", d.name, err)
	}
	if err := d.hold(cfg.Mark); err != nil {
		return nil, fmt.Errorf("rules of %s: %w", d.name, err)
	}
	return d, d.start(c)
}

// hold makes the table. If the previous process still has a table for the device, this one gets another name.
func (d *device) hold(mark uint32) (err error) {
	for _, suffix := range []string{"", "-b"} {
		d.hops.Table = tablePrefix + d.name + suffix
		if err = d.holdTable(mark); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return err
}

// holdTable makes the table of the name in hops. Until it has next hops, it drops every frame.
func (d *device) holdTable(mark uint32) error {
	forward, err := nft.Forward(d.hops, mark)
	if err != nil {
		return err
	}
	table := d.hops.Table
	steps := append([]nft.Step{nft.NewOwnedTable(nft.Netdev, table)}, nft.NewHops(d.hops)...)
	d.rules, err = nft.Hold(append(steps,
		nft.NewChain(nft.Netdev, table, chain, &nft.Hook{Type: "filter", Number: unix.NF_NETDEV_INGRESS, Drop: true, Device: d.name}),
		nft.NewRule(nft.Netdev, table, chain, forward, "tunnel packets of overlayd to their next hops"))...)
	return err
}

// close does not wait until the kernel has removed the device, which takes 25 ms, and longer if others change the network
// configuration of this machine. Else a worker would not forward meanwhile, and a daemon would not end.
func (d *device) close() {
	go func() {
		if d.rules != nil {
			_ = d.rules.Close() // if this fails, the table disappears with the device
		}
		d.file.Close()
	}()
}

// isThere returns why the device does not work; nil: it works.
func (d *device) isThere(c *rtmsg.Conn) error {
	there := false
	if err := d.conn.Control(func(fd uintptr) { there = tun.Attached(int(fd)) }); err != nil || !there {
		return errGone
	}
	l, err := linkOf(c, d.index, "")
	switch {
	case err != nil:
		return errors.Join(errGone, err)
	case l.name != d.name:
		return fmt.Errorf("%w to %s", errRenamed, l.name)
	case l.flags&unix.IFF_UP == 0:
		return errDown
	}
	return nil
}

var (
	errGone    = errors.New("the device was deleted")
	errDown    = errors.New("the device is down")
	errRenamed = errors.New("the device was renamed") // the kernel takes its table away with the name
)

// start brings the device up, because writing to a device that is down is an error. The device gets no IPv6 address: nobody
// would read what the kernel sends for it.
func (d *device) start(c *rtmsg.Conn) error {
	l, err := linkOf(c, 0, d.name)
	if err != nil {
		return fmt.Errorf("find %s: %w", d.name, err)
	}
	if d.index == 0 { // then constant: workers read it
		d.index = l.index
	}
	quiet := rtmsg.Attr(nil, unix.IFLA_INET6_ADDR_GEN_MODE, []byte{noAddress})
	spec := rtmsg.Attr(nil, unix.AF_INET6|unix.NLA_F_NESTED, quiet)
	if err := d.change(c, 0, 0, rtmsg.Attr(nil, unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, spec)); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("turn off IPv6 on %s: %w", d.name, err)
	}
	if err := d.change(c, unix.IFF_UP|unix.IFF_NOARP, unix.IFF_UP|unix.IFF_NOARP|unix.IFF_MULTICAST, nil); err != nil {
		return fmt.Errorf("bring %s up: %w", d.name, err)
	}
	return nil
}

// change sets the flags of the device that are in mask, and the attributes.
func (d *device) change(c *rtmsg.Conn, flags, mask uint32, attrs []byte) (err error) {
	return errors.Join(c.Transact(context.Background(), 1, func(_ int, b []byte) []byte {
		family := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(family[4:], uint32(d.index))
		binary.NativeEndian.PutUint32(family[8:], flags)
		binary.NativeEndian.PutUint32(family[12:], mask)
		start := len(b)
		return rtmsg.Finish(append(rtmsg.Begin(b, unix.RTM_NEWLINK, 0, family), attrs...), start)
	}, func(_ int, _ []byte, e error) { err = e }), err)
}

// deleteLink deletes a link, if it still exists.
func deleteLink(c *rtmsg.Conn, index int) {
	_ = c.Transact(context.Background(), 1, func(_ int, b []byte) []byte {
		family := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(family[4:], uint32(index))
		start := len(b)
		return rtmsg.Finish(rtmsg.Begin(b, unix.RTM_DELLINK, 0, family), start)
	}, func(int, []byte, error) {})
}

// write is write(2).
func write(fd uintptr, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}
