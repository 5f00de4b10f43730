package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// findOld finds the vxlan devices of the kernel dataplane, or of flannel, whose place the TUN
// device is to take. They go on forwarding until the first Sync, and meanwhile it has another
// name. It is an error if somebody else has the UDP port.
func (d *Device) findOld() error {
	name, nameV6 := dataplane.DeviceName(d.vni), dataplane.DeviceNameV6(d.vni)
	for _, n := range []string{name, nameV6} {
		l, err := d.conn.Link(n)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		v, ok := l.(*netlink.Vxlan)
		if !ok || n == nameV6 && v.VxlanId != int(d.vni) {
			continue // open looks at it, or it is somebody else's
		}
		d.old = append(d.old, v)
		if n == name {
			d.name = rtnl.TemporaryTUNName(d.vni)
		}
	}
	if err := d.findOthers(d.locals); err != nil || len(d.old)+len(d.others) == 0 {
		return err
	}
	return udp.CheckPort(d.conn, d.locals, d.goes)
}

// findOthers finds the devices of other networks of this process that hold the port of locals.
func (d *Device) findOthers(locals []netip.AddrPort) error {
	d.others = nil
	if len(locals) == 0 {
		return nil
	}
	holders, err := d.conn.PortHolders(locals[0].Port())
	d.others = slices.DeleteFunc(holders, func(n string) bool {
		vni, _ := dataplane.DeviceVNI(n)
		return vni == d.vni || !d.goes(n)
	})
	return err
}

// goes reports whether a vxlan device of that name is to make room: it is this network's, or
// another's that this process is going to carry.
func (d *Device) goes(name string) bool {
	vni, ok := dataplane.DeviceVNI(name)
	return ok && (vni == d.vni || d.replaces != nil && d.replaces(vni))
}

// Inherit returns underlays with the MACs of the predecessors: the peers know them.
func (d *Device) Inherit(underlays []dataplane.Underlay) []dataplane.Underlay {
	underlays = slices.Clone(underlays)
	for i := range underlays {
		u := &underlays[i]
		name := dataplane.DeviceName(d.vni)
		if u.Local.Is6() {
			name = dataplane.DeviceNameV6(d.vni)
		}
		for _, v := range d.old {
			if mac := v.HardwareAddr; v.Name == name && u.MAC == (encap.MAC{}) && len(mac) == encap.MACLen && encap.MAC(mac).IsUnicast() {
				u.MAC = encap.MAC(mac)
			}
		}
	}
	return underlays
}

// Predecessors returns the names of the devices that forward until Settle was successful.
func (d *Device) Predecessors() (names []string) {
	for _, v := range d.old {
		names = append(names, v.Name)
	}
	return append(names, d.others...)
}

// Check returns why the device cannot take the place of its predecessors: it is gone, or others hold
// the port of locals too.
func (d *Device) Check(locals []netip.AddrPort) error {
	if _, err := d.conn.LinkByIndex(d.index); err != nil {
		return err
	}
	if err := d.findOthers(locals); err != nil {
		return err
	}
	return udp.CheckPort(d.conn, locals, d.goes)
}

// Stop stops the predecessors over an underlay of that family, so that they hold no port.
func (d *Device) Stop(ipv6 bool) error {
	conn := d.conn
	for _, name := range d.Predecessors() {
		if strings.HasPrefix(name, dataplane.DevicePrefixV6) != ipv6 {
			continue
		}
		l, err := conn.Link(name)
		if errors.Is(err, rtnl.ErrNotFound) || err == nil && (l.Type() != "vxlan" || l.Attrs().Flags&net.FlagUp == 0) {
			continue
		}
		if err == nil && slices.Contains(d.others, name) {
			// Its own network may not come up: until it does, nothing for it may leave by another way.
			err = conn.HoldRoutes(l.Attrs().Index)
		} else if err == nil {
			d.withdraw(l)
		}
		if err == nil {
			err = conn.Handle().LinkSetDown(l)
		}
		if err != nil {
			return fmt.Errorf("set %s down: %w", name, err)
		}
	}
	return nil
}

// withdraw removes the routes to a device that is about to go down, as far as it can: the kernel
// drops what they lead there until it has removed them itself, while the TUN device's route is
// there already. Those of overlayd have gone for that one.
func (d *Device) withdraw(l netlink.Link) {
	filter := &netlink.Route{LinkIndex: l.Attrs().Index}
	routes, err := rtnl.Retry(func() ([]netlink.Route, error) {
		return d.conn.Handle().RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF)
	})
	for _, r := range routes {
		if err == nil && r.Protocol != unix.RTPROT_KERNEL {
			_ = d.conn.DeleteRoute(r) // it goes with the device, if later
		}
	}
}

// Settle removes the predecessors of its own network, which has these prefixes, and takes their
// place. A Sync is needed afterwards.
func (d *Device) Settle(networks []netip.Prefix) error {
	if err := d.conn.ReleaseRoutes(networks); err != nil { // if another network has stopped the device
		return err
	}
	d.others = nil // their own networks remove them
	for _, old := range d.old {
		d.withdraw(old)
		if err := d.conn.DeleteLink(old); err != nil {
			return err
		}
	}
	if err := d.takeName(dataplane.DeviceName(d.vni)); err != nil {
		return err
	}
	d.old = nil
	d.routes.dirty.Store(true) // the routes over them have gone
	return nil
}

// takeName gives the device a name, unless it has it.
func (d *Device) takeName(name string) error {
	l, err := d.conn.LinkByIndex(d.index)
	if err != nil {
		return err
	}
	if l.Attrs().Name != name {
		_, err = d.conn.Rename(l, name) // the Sync brings it up if it is down then
	}
	if err == nil {
		d.name = name
	}
	return err
}
