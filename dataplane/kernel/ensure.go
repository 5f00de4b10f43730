package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// ensureDevice makes the device be there, up, and as w wants it.
func (t *tunnel) ensureDevice(w dataplane.Wanted) error {
	l, err := t.rt.LinkByIndex(t.index)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return err
	}
	if err != nil || !t.isOurs(l) {
		t.log.Warn("overlay device is gone or changed, opening it again", "device", t.name)
		t.have = nil
		if err := t.openDevice(); err != nil {
			return err
		}
		if l, err = t.rt.LinkByIndex(t.index); err != nil {
			return err
		}
	}
	return t.adjust(l, w)
}

// isOurs reports whether l is the device that was opened.
func (t *tunnel) isOurs(l netlink.Link) bool {
	v, ok := l.(*netlink.Vxlan)
	return ok && v.Name == t.name && len(differences(v, vxlanLink(t.cfg, t.name, t.mac))) == 0
}

// adjust corrects what may be changed on the device in place.
func (t *tunnel) adjust(l netlink.Link, w dataplane.Wanted) error {
	if !isUp(l.Attrs()) {
		t.have = nil // setting it down took its routes and nexthops along
	}
	if linkMAC(l) != t.mac {
		if err := t.rt.Handle().LinkSetHardwareAddr(l, t.mac[:]); err != nil {
			return fmt.Errorf("set MAC of %s to %s: %w", t.name, t.mac, err)
		}
	}
	if err := t.rt.SetLink(t.index, w.MTU, rtnl.Alias, true); err != nil {
		return explain(err, t.cfg)
	}
	return t.rt.SetAddrs(t.index, t.own(w.Subnets), t.own(w.Networks))
}

// own returns the prefixes of the tunnel's family.
func (t *tunnel) own(ps []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		if p.Addr().Is4() == t.cfg.Local.Is4() {
			out = append(out, p)
		}
	}
	return out
}
