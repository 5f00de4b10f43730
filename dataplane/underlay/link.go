package underlay

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// link is one interface of the host.
type link struct {
	name     string
	index    int
	mtu      int
	up       bool
	loopback bool
	addrs    []address // IPv4, in the kernel's order
}

// address is one IPv4 address of an interface, with what the flags of
// linux/if_addr.h say about it.
type address struct {
	ip         netip.Addr
	permanent  bool // IFA_F_PERMANENT: has no lifetime
	secondary  bool // IFA_F_SECONDARY, which is IFA_F_TEMPORARY for IPv6
	deprecated bool // IFA_F_DEPRECATED: not for new traffic
}

// usable: other hosts can send to it, so nothing of 127.0.0.0/8.
func (a address) usable() bool {
	return a.ip.Is4() && !a.deprecated && !a.ip.IsUnspecified() && !a.ip.IsMulticast() && !a.ip.IsLoopback()
}

// rank orders usable addresses, the best highest.
func (a address) rank() int {
	r := 0
	switch {
	case a.ip.IsGlobalUnicast():
		r = 8
	case a.ip.IsLinkLocalUnicast():
		r = 4
	}
	if a.permanent {
		r += 2
	}
	if !a.secondary {
		r++
	}
	return r
}

// best returns the address to use where none was asked for: global before
// link-local, permanent before dynamic, primary before
// secondary, and of equals the kernel's first.
func (l *link) best() (netip.Addr, bool) {
	usable := slices.DeleteFunc(slices.Clone(l.addrs), func(a address) bool { return !a.usable() })
	if len(usable) == 0 {
		return netip.Addr{}, false
	}
	// MinFunc returns the first of equals; MaxFunc would too, but does not promise it.
	return slices.MinFunc(usable, func(a, b address) int { return cmp.Compare(b.rank(), a.rank()) }).ip, true
}

func (l *link) has(ip netip.Addr) bool {
	return slices.ContainsFunc(l.addrs, func(a address) bool { return a.ip == ip && a.usable() })
}

// refusal says why l must not carry the overlay; the loopback may where the user
// asked for it by name.
func (l *link) refusal(loopback bool) error {
	switch {
	case l.loopback && !loopback:
		return errors.New("is the loopback")
	case isOverlayName(l.name):
		return errors.New("is an overlay device itself")
	}
	return nil
}

// isOverlayName recognises flannel.<VNI> and flannel-v6.<VNI>, the devices of
// overlayd and of flannel.
func isOverlayName(name string) bool {
	vni, ok := strings.CutPrefix(name, "flannel.")
	if !ok {
		vni, ok = strings.CutPrefix(name, "flannel-v6.")
	}
	return ok && vni != "" && strings.Trim(vni, "0123456789") == ""
}

// addresses describes the addresses for a message.
func (l *link) addresses() string {
	if len(l.addrs) == 0 {
		return "no IPv4 address"
	}
	var s []string
	for _, a := range l.addrs {
		switch {
		case a.ip.IsLoopback():
			s = append(s, a.ip.String()+" loopback")
		case a.deprecated:
			s = append(s, a.ip.String()+" deprecated")
		default:
			s = append(s, a.ip.String())
		}
	}
	return strings.Join(s, " ")
}

// maxDescribed bounds a message on hosts with thousands of pod interfaces.
const maxDescribed = 32

// describe lists what was looked at. What has no address comes last: on a host
// full of pods that is nearly everything.
func describe(links []link) string {
	sorted := slices.Clone(links)
	slices.SortStableFunc(sorted, func(a, b link) int {
		return cmp.Compare(min(len(b.addrs), 1), min(len(a.addrs), 1))
	})
	var s []string
	for _, l := range sorted[:min(len(sorted), maxDescribed)] {
		d := l.name + " " + l.addresses()
		if !l.up {
			d += ", down"
		}
		if err := l.refusal(false); err != nil {
			d += ", " + err.Error()
		}
		s = append(s, d)
	}
	if len(sorted) > maxDescribed {
		s = append(s, "and more")
	}
	return strings.Join(s, "; ")
}
