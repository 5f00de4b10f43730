package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// ensureDevice opens the device again if it is gone or was changed.
func (t *tunnel) ensureDevice() (netlink.Link, error) {
	l, err := t.rt.LinkByIndex(t.index)
	if err == nil && t.isOurs(l) {
		return l, nil
	}
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return nil, err
	}
	if err == nil && t.renameBack(l) == nil {
		return t.rt.LinkByIndex(t.index)
	}
	t.emptied = true
	if err := t.openDevice(); err != nil {
		return nil, err
	}
	t.note(dataplane.OpAdd, "")
	return t.rt.LinkByIndex(t.index)
}

// renameBack gives the device its name back, if nothing else is wrong with it and nobody else has the name.
func (t *tunnel) renameBack(l netlink.Link) error {
	v, ok := l.(*netlink.Vxlan)
	if !ok || v.Name == t.name || !t.isAsMade(v) {
		return rtnl.ErrNotFound
	}
	was := v.Name
	if _, err := t.rename(v, t.name); err != nil { // if it is down then, adjust brings it up
		return err
	}
	t.note(dataplane.OpReplace, "name "+was)
	return nil
}

// isOurs reports whether l is the device that was opened.
func (t *tunnel) isOurs(l netlink.Link) bool {
	v, ok := l.(*netlink.Vxlan)
	return ok && v.Name == t.name && t.isAsMade(v)
}

func (t *tunnel) isAsMade(v *netlink.Vxlan) bool {
	fixed, mutable := differences(v, vxlanLink(t.cfg, t.Underlay, t.name, t.mac))
	return len(fixed)+len(mutable) == 0
}

// adjust corrects what can be changed on the device in place: as much as possible, even if it
// returns an error.
func (t *tunnel) adjust(l netlink.Link, w dataplane.Wanted) error {
	if !isUp(l.Attrs()) || !rtnl.HasCarrier(l) {
		t.emptied = true // that took its routes and nexthops along
	}
	var errs []error
	before := t.rt.Changes()
	if m, ok := w.MAC(t.Local.Is6()); ok && m != t.mac {
		t.log.Info("MAC of the device changes with the lease", "device", t.name, "was", t.mac, "mac", m)
		t.mac = m
	}
	if linkMAC(l) != t.mac {
		t.emptied = true // the kernel forgets all neighbours (neigh_changeaddr)
		was := linkMAC(l)
		if err := t.rt.Handle().LinkSetHardwareAddr(l, t.mac[:]); err != nil {
			errs = append(errs, fmt.Errorf("set MAC of %s to %s: %w", t.name, t.mac, err))
		} else {
			t.note(dataplane.OpReplace, "MAC "+was.String())
		}
	}
	if !t.mayBeUp() {
		return errors.Join(append(errs, t.holdDown(l))...)
	}
	errs = append(errs,
		explain(t.rt.SetLink(t.index, w.MTU, rtnl.Alias, true), t.cfg),
		t.rt.AddAddrs(t.index, t.own(w.Subnets), t.own(w.Addrs)...))
	if t.rt.Changes() != before {
		t.emptied = true // with its last IPv4 address the kernel removes routes, and says nothing (fib_disable_ip)
		t.note(dataplane.OpReplace, "other MTU, state or addresses")
	}
	return errors.Join(errs...)
}

func (t *tunnel) mayBeUp() bool { return t.cfg.MayBeUp == nil || t.cfg.MayBeUp() }

// holdDown sets the device down, and returns the error that this is.
func (t *tunnel) holdDown(l netlink.Link) error {
	t.emptied = true
	if err := t.rt.Handle().LinkSetDown(l); err != nil {
		return fmt.Errorf("set %s down: %w", t.name, err)
	}
	return fmt.Errorf("device %s: %w", t.name, ErrHeldDown)
}

// settle takes the place of the TUN device and removes unwanted overlay addresses. It is called after
// all devices have got theirs, as an address may have moved. It reports whether the device lost what
// was programmed on it.
func (t *tunnel) settle(w dataplane.Wanted) (lost bool, err error) {
	if lost, err = t.takePlace(); err != nil {
		return lost, err
	}
	before := t.rt.Changes()
	err = t.rt.SetAddrs(t.index, t.own(w.Subnets), w.Networks, t.own(w.Addrs)...)
	if t.rt.Changes() != before {
		t.emptied = true // as in adjust
		t.note(dataplane.OpReplace, "further addresses")
	}
	t.synced = true
	return lost, err
}

// note records a change of the device.
func (t *tunnel) note(op dataplane.Op, was string) {
	t.changes = append(t.changes, dataplane.Change{Op: op, Kind: kindDevice, Key: t.name, Was: was, Is: "MAC " + t.mac.String()})
}
