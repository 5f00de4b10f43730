package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// openDevice adopts the device or makes it, and sets t.name, t.index and t.mac. It fails
// with one of the package's sentinels if kernel mode cannot work here, and
// then leaves what it found, unless that was an incompatible vxlan device.
func (t *tunnel) openDevice() error {
	name := deviceName(t.Local, t.cfg.VNI)
	l, err := t.rt.Link(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return t.create(name)
	}
	if err != nil {
		return err
	}
	v, ok := l.(*netlink.Vxlan)
	if !ok {
		return t.displace(l)
	}
	if mac := linkMAC(v); t.mac == (encap.MAC{}) && mac.IsUnicast() {
		t.mac = mac // peers know it
	}
	t.name = name
	if diff := t.change(v); len(diff) > 0 {
		t.log.Warn("existing device is incompatible, making it again", "device", name, "differences", strings.Join(diff, "; "))
		if err := t.rt.DeleteLink(v); err != nil {
			return explain(err, t.cfg)
		}
		return t.create(name)
	}
	if err := t.probe(v.Attrs().Index, false); err != nil {
		return err
	}
	if err := t.finish(v.Attrs().Index); err != nil {
		return err
	}
	t.log.Info("adopted existing device", "device", name, "mac", t.mac)
	return nil
}

// change changes an existing device in place, and returns why that is impossible. Routes and
// entries stay on the device.
func (t *tunnel) change(v *netlink.Vxlan) (impossible []string) {
	want := vxlanLink(t.cfg, t.Underlay, t.name, t.mac)
	fixed, mutable := differences(v, want)
	if len(fixed) > 0 || len(mutable) == 0 {
		return append(fixed, mutable...)
	}
	encode := func(_ int, b []byte) []byte { return changeVxlanMessage(b, v.Attrs().Index, want) }
	var refused error
	err := t.batch.Transact(context.Background(), 1, encode, func(_ int, _ []byte, err error) { refused = err })
	if err = errors.Join(err, refused); err != nil {
		return append(mutable, err.Error())
	}
	if err := t.renewFDB(v.Attrs().Index); err != nil {
		return append(mutable, err.Error())
	}
	t.log.Info("changed existing device", "device", t.name, "differences", strings.Join(mutable, "; "))
	return nil
}

// renewFDB has the kernel ask for the routes to all VTEPs again, after the local address has changed. It keeps a route with the old local address
// in each entry of the FDB (dst_cache of struct vxlan_rdst). Over IPv6 it does not notice the change, and would send from the old address for good.
// An entry is replaced by one that names the underlay's link, and then by one like the first: each time the kernel forgets the route. Entries that are
// deleted and added again would lose the packets in between. In between, a peer that is reached by another link has no route.
func (t *tunnel) renewFDB(index int) error {
	if !t.Local.Is6() {
		return nil
	}
	var entries []neighbour
	err := t.batch.Dump(unix.RTM_GETNEIGH, ndmsg(unix.AF_BRIDGE, index, 0, 0), nil, func(body []byte) {
		if n, ok := parseNeighbour(body); ok && n.index == index && n.family == unix.AF_BRIDGE && n.plain && n.mac.IsUnicast() {
			entries = append(entries, n)
		}
	})
	if err != nil {
		return fmt.Errorf("list FDB of %s: %w", t.name, err)
	}
	encode := func(i int, b []byte) []byte { return renewMessage(b, entries[i/2], t.Underlay.Link*(1-i%2)) }
	var refused error
	err = t.batch.Transact(context.Background(), 2*len(entries), encode, func(i int, _ []byte, err error) {
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: somebody has removed it meanwhile
			refused = fmt.Errorf("renew FDB entry %s of %s: %w", entries[i/2].mac, t.name, err)
		}
	})
	return errors.Join(err, refused)
}

// create makes the device under a name, tries it, and brings it up, unless that is left to the
// first Sync; if anything fails nothing is left of it.
func (t *tunnel) create(name string) error {
	if t.mac == (encap.MAC{}) {
		t.mac = dataplane.MAC(t.Public, t.cfg.VNI)
	}
	v := vxlanLink(t.cfg, t.Underlay, name, t.mac)
	if err := t.rt.Handle().LinkAdd(v); err != nil {
		return t.explainCreate(name, err)
	}
	l, err := t.rt.Link(name)
	if err != nil {
		return err
	}
	t.name = name
	if err = t.probe(l.Attrs().Index, true); err == nil {
		err = t.finish(l.Attrs().Index)
	}
	if err != nil {
		return errors.Join(err, t.rt.DeleteLink(l))
	}
	t.made = true
	t.log.Info("made device", "device", name, "mac", t.mac, "mtu", t.cfg.MTU)
	return nil
}

// finish sets MTU and alias and brings the device up, unless that is left to the first Sync; the
// kernel then binds its UDP port.
func (t *tunnel) finish(index int) error {
	if err := explain(t.rt.SetLink(index, t.cfg.MTU, rtnl.Alias, !t.cfg.Later && t.mayBeUp()), t.cfg); err != nil {
		return err
	}
	t.index = index
	t.watched.Store(int64(index))
	// Router advertisements must not configure the overlay device. If IPv6 is off or /proc/sys
	// is read-only, that cannot be set; flannel ignores this, too.
	_ = rtnl.SetSysctl("net/ipv6/conf/"+t.name+"/accept_ra", "0")
	return nil
}

// displace makes the vxlan device that is to take the place of the userspace dataplane's TUN device.
// It has another name until the first Sync, or TakePlace: meanwhile the routes of the old one keep packets
// from the default route. A link of any other type with this name belongs to somebody else.
func (t *tunnel) displace(old netlink.Link) error {
	if !isTUN(old) {
		return fmt.Errorf("make vxlan device %[1]s: a device of type %[2]s has this name; remove it (`ip link del %[1]s`)", old.Attrs().Name, old.Type())
	}
	t.log.Info("replacing the TUN device by a vxlan device", "device", old.Attrs().Name)
	temporary := rtnl.TemporaryName(t.Local.Is6(), t.cfg.VNI)
	if l, err := t.rt.Link(temporary); err == nil { // left by a crash
		if err := t.rt.DeleteLink(l); err != nil {
			return explain(err, t.cfg)
		}
	}
	return t.create(temporary)
}

// takePlace gives the device the name of the TUN device that it displaces, which goes, unless that is left to
// TakePlace. It reports whether the device lost on the way what was programmed on it.
func (t *tunnel) takePlace() (lost bool, err error) {
	name := deviceName(t.Local, t.cfg.VNI)
	if t.name == name || t.cfg.Later {
		return false, nil
	}
	if old, err := t.rt.Link(name); err == nil && isTUN(old) {
		if err := t.rt.DeleteLink(old); err != nil {
			return false, err
		}
	}
	l, err := t.rt.LinkByIndex(t.index)
	if err != nil {
		return false, err
	}
	if lost, err = t.rename(l, name); err == nil {
		t.name = name
	}
	return lost, err
}

// rename gives the device a name. It reports whether the device lost for that what was programmed on it.
func (t *tunnel) rename(l netlink.Link, name string) (lost bool, err error) {
	down, err := t.rt.Rename(l, name)
	t.emptied = t.emptied || down
	return down && err == nil, err
}

// abandon removes a device that was made for a Sync that never came, if it is not in its place or not
// up.
func (t *tunnel) abandon() {
	if !t.made || t.synced || !t.cfg.Later && t.name == deviceName(t.Local, t.cfg.VNI) {
		return
	}
	if l, err := t.rt.LinkByIndex(t.index); err == nil {
		_ = t.rt.DeleteLink(l) // whoever needs the name finds it
	}
}

func isTUN(l netlink.Link) bool { return l.Type() == "tuntap" || l.Type() == "tun" }

// explainCreate adds why the kernel refuses to make the device.
func (t *tunnel) explainCreate(name string, err error) error {
	err = fmt.Errorf("make vxlan device %s: %w", name, err)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w (interface index %d)", err, ErrUnderlayGone, t.Link)
	}
	if !errors.Is(err, unix.EEXIST) {
		return explain(err, t.cfg)
	}
	holder := "another vxlan device"
	if links, e := t.rt.Links(); e == nil {
		for _, l := range links {
			if v, ok := l.(*netlink.Vxlan); ok && v.VxlanId == int(t.cfg.VNI) && v.Port == int(t.cfg.Port) {
				holder = "device " + v.Name
			}
		}
	}
	return fmt.Errorf("%w: %w: %s has VNI %d on port %d; remove it (ip link del ...) or choose another VNI",
		err, ErrPortInUse, holder, t.cfg.VNI, t.cfg.Port)
}

// probe tries whether forwarding entries and neighbours can be programmed: some sandboxes allow
// the device but not these. On a new device it adds and removes one of each. On an adopted one
// it only removes entries that do not exist, which needs the same permission and changes
// nothing.
func (t *tunnel) probe(index int, add bool) error {
	h := t.rt.Handle()
	mac := dataplane.MAC(t.Public, t.cfg.VNI^1<<24) // nobody's: a VNI has 24 bits
	local := t.Local.AsSlice()
	entries := []*netlink.Neigh{
		{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT, IP: local, HardwareAddr: mac[:]},
		{LinkIndex: index, Family: int(t.family()), State: unix.NUD_PERMANENT, IP: local, HardwareAddr: mac[:]},
	}
	for i, what := range []string{"FDB entry", "neighbour"} {
		if add {
			if err := h.NeighSet(entries[i]); err != nil {
				return explain(fmt.Errorf("try to add an %s to %s: %w", what, t.name, err), t.cfg)
			}
		}
		if err := h.NeighDel(entries[i]); err != nil && !isGone(err) {
			return explain(fmt.Errorf("try to remove an %s from %s: %w", what, t.name, err), t.cfg)
		}
	}
	return nil
}
