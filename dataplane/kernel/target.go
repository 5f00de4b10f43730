package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// target is one overlay subnet of one peer: what one route needs.
type target struct {
	peer int // index in Wanted.Peers
	dst  netip.Prefix
	mac  encap.MAC
	via  netip.Addr // the peer's underlay address
}

// base is the subnet's first address: the peer's address on its overlay device,
// and so the gateway of the route.
func (t target) base() netip.Addr { return t.dst.Addr() }

func (t target) fdb() fdbEntry { return fdbEntry{t.mac, t.via} }

// desired is a set of targets without a contradiction between them.
type desired struct {
	targets []target
	byBase  map[netip.Addr]int       // index in targets
	fdb     map[encap.MAC]netip.Addr // underlay address of each MAC
}

func newDesired(n int) *desired {
	return &desired{
		targets: make([]target, 0, n),
		byBase:  make(map[netip.Addr]int, n),
		fdb:     make(map[encap.MAC]netip.Addr, n),
	}
}

// add takes a target unless it contradicts an earlier one.
func (d *desired) add(t target) error {
	if i, ok := d.byBase[t.base()]; ok {
		return fmt.Errorf("subnet %s begins like subnet %s of peer %s", t.dst, d.targets[i].dst, d.targets[i].via)
	}
	if via, ok := d.fdb[t.mac]; ok && via != t.via {
		return fmt.Errorf("MAC %s is that of peer %s, too", t.mac, via)
	}
	d.byBase[t.base()] = len(d.targets)
	d.fdb[t.mac] = t.via
	d.targets = append(d.targets, t)
	return nil
}

// refusals collects errors by peer (index in Wanted.Peers).
type refusals map[int]error

func (r refusals) add(peer int, err error) {
	if err != nil {
		r[peer] = errors.Join(r[peer], err)
	}
}

// compile turns the peers of one family into targets. What cannot be right is
// refused here, before the kernel sees it: the store is not trusted, and a
// route must never lead traffic away that is not the overlay's.
func compile(w dataplane.Wanted, c *Config) (*desired, refusals) {
	d, refused := newDesired(len(w.Peers)), refusals{}
	for i, p := range w.Peers {
		if p.Addr.Is4() != c.Local.Is4() {
			continue // another device's
		}
		if err := checkPeer(p, c); err != nil {
			refused.add(i, err)
			continue
		}
		for _, s := range p.Subnets {
			err := checkSubnet(s, w, p)
			if err == nil {
				err = d.add(target{peer: i, dst: s, mac: p.MAC, via: p.Addr})
			}
			refused.add(i, err)
		}
	}
	return d, refused
}

func checkPeer(p dataplane.Peer, c *Config) error {
	switch a := p.Addr; {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == broadcast4:
		return fmt.Errorf("underlay address %s is no host's", a)
	case a == c.Public || a == c.Local:
		return fmt.Errorf("underlay address %s is this host's", a)
	case !p.MAC.IsUnicast():
		return fmt.Errorf("MAC %s is no station's", p.MAC)
	case p.VNI != c.VNI: // flannel does not compare it
		return fmt.Errorf("VNI %d is not this network's %d", p.VNI, c.VNI)
	}
	return nil
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func checkSubnet(s netip.Prefix, w dataplane.Wanted, p dataplane.Peer) error {
	if !s.IsValid() || s != s.Masked() || s.Addr().Is4() != p.Addr.Is4() {
		return fmt.Errorf("subnet %s is not a masked prefix of the underlay address's family", s)
	}
	for _, own := range w.Subnets {
		if own.Overlaps(s) {
			return fmt.Errorf("subnet %s overlaps this host's %s", s, own)
		}
	}
	for _, n := range w.Networks {
		if n.Bits() <= s.Bits() && n.Contains(s.Addr()) {
			return nil
		}
	}
	if len(w.Networks) == 0 {
		return nil
	}
	return fmt.Errorf("subnet %s is outside the overlay network %s", s, w.Networks)
}
