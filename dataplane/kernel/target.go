package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// target is one overlay subnet of one peer: what one route needs.
type target struct {
	peer   int // index in Wanted.Peers
	link   int // index of the device
	dst    netip.Prefix
	mac    encap.MAC
	via    netip.Addr // the peer's underlay address
	direct bool       // a direct route leads there: no route by the device
	yields bool       // a direct route in the place of its own is as good
}

// base is the subnet's first address: the peer's address on its overlay device,
// and so the gateway of the route.
func (t target) base() netip.Addr { return t.dst.Addr() }

// at is the base address on the device.
func (t target) at() place { return place{t.link, t.base()} }

func (t target) fdb() fdbEntry { return fdbEntry{t.link, t.mac, t.via} }

// remoteMAC is a MAC behind one of the devices.
type remoteMAC struct {
	link int
	mac  encap.MAC
}

// desired is a set of targets without a contradiction between them.
type desired struct {
	targets []target
	byBase  map[netip.Addr]int       // index in targets
	fdb     map[remoteMAC]netip.Addr // underlay address of each MAC
	routed  int                      // how many need a route by the device
}

func newDesired(n int) *desired {
	return &desired{
		targets: make([]target, 0, n),
		byBase:  make(map[netip.Addr]int, n),
		fdb:     make(map[remoteMAC]netip.Addr, n),
	}
}

// at returns the target of a base address.
func (d *desired) at(base netip.Addr) (target, bool) {
	i, ok := d.byBase[base]
	if !ok {
		return target{}, false
	}
	return d.targets[i], true
}

// add takes a target unless it contradicts an earlier one.
func (d *desired) add(t target) error {
	if i, ok := d.byBase[t.base()]; ok {
		return fmt.Errorf("subnet %s begins like subnet %s of peer %s", t.dst, d.targets[i].dst, d.targets[i].via)
	}
	s := remoteMAC{t.link, t.mac}
	if via, ok := d.fdb[s]; ok && via != t.via {
		return fmt.Errorf("MAC %s is that of peer %s, too", t.mac, via)
	}
	d.byBase[t.base()] = len(d.targets)
	d.fdb[s] = t.via
	d.targets = append(d.targets, t)
	if !t.direct {
		d.routed++
	}
	return nil
}

// refusals collects errors by peer (index in Wanted.Peers).
type refusals map[int]error

func (r refusals) add(peer int, err error) {
	if err != nil {
		r[peer] = errors.Join(r[peer], err)
	}
}

// end is this host's end of a tunnel, as far as targets depend on it.
type end struct {
	dataplane.Underlay
	device int // index
	vni    uint32
}

// compile turns peers into targets, each of the tunnel of its VTEP's family; those of
// a family that has no end here are left out. What cannot be right is
// refused here, before the kernel sees it: the store is not trusted, and a
// route must never lead traffic away that is not the overlay's.
func compile(w dataplane.Wanted, ends ...end) (*desired, refusals) {
	d, refused := newDesired(len(w.Peers)), refusals{}
	for i, p := range w.Peers {
		n := slices.IndexFunc(ends, func(e end) bool { return e.Local.Is4() == p.Addr.Is4() })
		if n < 0 {
			continue
		}
		if err := dataplane.CheckPeer(p, ends[n].vni, ends[n].Public, ends[n].Local); err != nil {
			refused.add(i, err)
			continue
		}
		for _, s := range p.Subnets {
			err := dataplane.CheckSubnet(s, w)
			if err == nil {
				err = d.add(target{peer: i, link: ends[n].device, dst: s, mac: p.MAC, via: p.Addr, direct: p.Direct})
			}
			refused.add(i, err)
		}
	}
	return d, refused
}
