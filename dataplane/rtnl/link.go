package rtnl

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// Link returns the link of that name, or an error that wraps [ErrNotFound].
func (c *Conn) Link(name string) (netlink.Link, error) {
	// Old kernels refuse the lookup by name, and netlink dumps all links instead.
	l, err := Retry(func() (netlink.Link, error) { return c.h.LinkByName(name) })
	return found(l, err, "find link %s: %w", name)
}

// LinkByIndex returns the link of that index, or an error that wraps [ErrNotFound].
func (c *Conn) LinkByIndex(index int) (netlink.Link, error) {
	l, err := c.h.LinkByIndex(index)
	return found(l, err, "find link %d: %w", index)
}

func found(l netlink.Link, err error, format string, what any) (netlink.Link, error) {
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf(format, what, err)
	}
	return l, nil
}

// TUNOwner returns the uid of the owner of a TUN or TAP device; -1: it has none. The error is [errors.ErrUnsupported] if the kernel does
// not tell (before Linux 4.16).
func (c *Conn) TUNOwner(index int) (uid int, err error) {
	r := c.request(unix.RTM_GETLINK, 0)
	r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(index)}})
	msgs, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return 0, fmt.Errorf("find the owner of link %d: %w", index, err)
	}
	err = fmt.Errorf("find the owner of link %d: %w", index, errors.ErrUnsupported)
	for _, m := range msgs {
		_, attrs := rtmsg.Split(m, unix.SizeofIfInfomsg)
		data := attr(attr(attrs, unix.IFLA_LINKINFO), unix.IFLA_INFO_DATA)
		if data == nil {
			continue
		}
		if owner := attr(data, nl.IFLA_TUN_OWNER); owner != nil {
			return int(rtmsg.Uint32(owner)), nil
		}
		uid, err = -1, nil
	}
	return uid, err
}

// TUNQueues returns how many queues a TUN device has that may have several, those that are turned off among them: whoever has such a
// queue turns it on again. It returns 0 for other devices.
func TUNQueues(l netlink.Link) int {
	if t, ok := l.(*netlink.Tuntap); ok {
		return t.Queues + t.DisabledQueues
	}
	return 0
}

// attr returns the value of the attribute of a type, or nil.
func attr(b []byte, typ uint16) []byte {
	for t, v := range rtmsg.Attrs(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

// Links returns all links of the namespace.
func (c *Conn) Links() ([]netlink.Link, error) {
	links, err := Retry(c.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// PortHolders returns the names of the vxlan devices that hold a UDP port: those
// that are up.
func (c *Conn) PortHolders(port uint16) ([]string, error) {
	links, err := c.Links()
	var names []string
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok && v.Port == int(port) && v.Flags&net.FlagUp != 0 {
			names = append(names, v.Name)
		}
	}
	return names, err
}

// SetLink sets the link's MTU (bytes; 0 leaves it) and alias ("" leaves it), and brings it up if
// up is true: of no master but a VRF, and with its carrier if it was up. If one of these is refused, the others are still set.
func (c *Conn) SetLink(index, mtu int, alias string, up bool) error {
	l, err := c.LinkByIndex(index)
	if err != nil {
		return err
	}
	a := l.Attrs()
	var errs []error
	if mtu != 0 && a.MTU != mtu {
		if err := c.h.LinkSetMTU(l, mtu); err != nil {
			errs = append(errs, fmt.Errorf("set MTU of %s to %d: %w", a.Name, mtu, err))
		} else {
			c.changed(dataplane.OpReplace, KindDevice, a.Name, fmt.Sprintf("mtu %d", a.MTU), fmt.Sprintf("mtu %d", mtu))
		}
	}
	if alias != "" && a.Alias != alias {
		if err := c.h.LinkSetAlias(l, alias); err != nil {
			errs = append(errs, fmt.Errorf("set alias of %s to %q: %w", a.Name, alias, err))
		} else {
			c.changed(dataplane.OpReplace, KindDevice, a.Name, fmt.Sprintf("alias %q", a.Alias), fmt.Sprintf("alias %q", alias))
		}
	}
	if up && a.MasterIndex != 0 && !c.isVRF(a.MasterIndex) { // a bridge takes its packets
		if err := c.h.LinkSetNoMaster(l); err != nil {
			errs = append(errs, fmt.Errorf("take %s from its master: %w", a.Name, err))
		} else {
			c.changed(dataplane.OpReplace, KindDevice, a.Name, fmt.Sprintf("master %d", a.MasterIndex), "no master")
		}
	}
	if up && a.Flags&net.FlagUp == 0 {
		if err := c.h.LinkSetUp(l); err != nil {
			errs = append(errs, fmt.Errorf("set %s up: %w", a.Name, err))
		} else {
			c.changed(dataplane.OpReplace, KindDevice, a.Name, "down", "up")
		}
	} else if up && !HasCarrier(l) {
		if err := c.raise(l); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isVRF reports whether a link is a VRF: whoever puts a device into one knows why.
func (c *Conn) isVRF(index int) bool {
	l, err := c.LinkByIndex(index)
	return err == nil && l.Type() == "vrf"
}

// SetQueue makes the queue of a link at least that long, in packets.
func (c *Conn) SetQueue(l netlink.Link, least int) error {
	a := l.Attrs()
	if a.TxQLen >= least {
		return nil
	}
	if err := c.h.LinkSetTxQLen(l, least); err != nil {
		return fmt.Errorf("set txqueuelen of %s to %d: %w", a.Name, least, err)
	}
	c.changed(dataplane.OpReplace, KindDevice, a.Name, fmt.Sprintf("txqueuelen %d", a.TxQLen), fmt.Sprintf("txqueuelen %d", least))
	return nil
}

// Rename gives a link another name. It reports whether the link went down for that, and lost what was on it: kernels
// before 6.2 rename no link that is up.
func (c *Conn) Rename(l netlink.Link, name string) (down bool, err error) {
	err = unix.EBUSY
	if !c.NoLiveRename || l.Attrs().Flags&net.FlagUp == 0 {
		err = c.h.LinkSetName(l, name)
	}
	if errors.Is(err, unix.EBUSY) {
		if holder, e := c.Link(name); e == nil { // these kernels look at the name later
			return false, fmt.Errorf("rename %s to %s: a device of type %s has this name", l.Attrs().Name, name, holder.Type())
		}
		if err = c.h.LinkSetDown(l); err == nil {
			down, err = true, c.h.LinkSetName(l, name)
		}
	}
	if err != nil {
		return down, fmt.Errorf("rename %s to %s: %w", l.Attrs().Name, name, err)
	}
	return down, nil
}

// DeleteLink deletes the link; it is not an error if it is already gone. From one with
// [Alias] overlayd's routes go first: for every nexthop that goes with its device
// and still has routes the kernel walks the whole routing table (6.18, 20 000
// peers: 1.4 s in which nothing else can be configured on the machine).
func (c *Conn) DeleteLink(l netlink.Link) error {
	a := l.Attrs()
	var errs []error
	if a.Alias == Alias {
		errs = append(errs, c.clearRoutes(a.Index))
	}
	err := c.h.LinkDel(l)
	if err == nil || errors.Is(err, unix.ENODEV) {
		return nil // and its routes went with it
	}
	return errors.Join(append(errs, fmt.Errorf("delete link %s: %w", a.Name, err))...)
}

// clearRoutes deletes overlayd's routes on the link.
func (c *Conn) clearRoutes(index int) error {
	routes, err := c.ourRoutes()
	errs := []error{err}
	for _, r := range routes {
		if r.LinkIndex == index {
			errs = append(errs, c.DeleteRoute(r))
		}
	}
	return errors.Join(errs...)
}
