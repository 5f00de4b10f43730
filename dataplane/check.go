package dataplane

import (
	"fmt"
	"net/netip"
)

// CheckPeer reports why no dataplane may have p as a peer in the network of that VNI, apart from
// its subnets. The own addresses are this host's, local and published; invalid ones are ignored.
// The store is not trusted: every dataplane checks what it is told, by the same rules.
func CheckPeer(p Peer, vni uint32, own ...netip.Addr) error {
	switch {
	case !isHost(p.Addr):
		return fmt.Errorf("underlay address %s is not the address of one host", p.Addr)
	case p.VNI != vni: // flannel does not compare it
		return fmt.Errorf("VNI %d is not VNI %d of this network", p.VNI, vni)
	case !p.MAC.IsUnicast():
		return fmt.Errorf("MAC %s is not a unicast address", p.MAC)
	}
	for _, o := range own {
		if p.Addr == o {
			return fmt.Errorf("underlay address %s belongs to this host", o)
		}
	}
	return nil
}

// CheckSource reports why no peer's packets may have the outer source s. The own addresses are this
// host's; invalid ones are ignored.
func CheckSource(s netip.Addr, own ...netip.Addr) error {
	if !isHost(s) {
		return fmt.Errorf("source %s is not the address of one host", s)
	}
	for _, o := range own {
		if s == o {
			return fmt.Errorf("source %s belongs to this host", s)
		}
	}
	return nil
}

// isHost reports whether a can be the underlay address of one host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() &&
		!(a.Is6() && a.IsLinkLocalUnicast()) && a != broadcast4
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// CheckSubnet reports why no dataplane may route s to a peer: it has to be masked, inside one of
// w.Networks (if there are any) and outside the own subnets. A route must never lead away
// traffic that does not belong to the overlay.
func CheckSubnet(s netip.Prefix, w Wanted) error {
	if !s.IsValid() || s != s.Masked() || s.Addr().Is4In6() {
		return fmt.Errorf("subnet %s is not a masked prefix", s)
	}
	for _, own := range w.Subnets {
		if own.Overlaps(s) {
			return fmt.Errorf("subnet %s overlaps the own subnet %s", s, own)
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
