package underlay

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
)

// link is one interface of the host.
type link struct {
	name     string
	index    int
	mtu      int
	up       bool
	carrier  bool // also reported by devices that have none to lose
	loopback bool
	virtual  bool // nothing leaves by it, so that its MTU says nothing: the loopback, a dummy device or a VRF
	vrf      bool
	pods     bool      // it may lead to pods, or is a tunnel: its MTU may follow that of the overlay
	master   int       // index of the link that this one is enslaved to; 0: none
	addrs    []address // in the kernel's order
}

// address is one address of an interface, with what the flags of
// linux/if_addr.h say about it.
type address struct {
	ip         netip.Addr
	permanent  bool // IFA_F_PERMANENT: has no lifetime
	secondary  bool // IFA_F_SECONDARY, which is IFA_F_TEMPORARY for IPv6
	deprecated bool // IFA_F_DEPRECATED: not for new traffic, if there is another address
	duplicate  bool // IFA_F_DADFAILED: another host has it
	tentative  bool // IFA_F_TENTATIVE: not yet known whether another host has it
}

// usable reports whether other hosts can send to a: not a loopback address, and link-local only
// in IPv4.
func (a address) usable() bool {
	return !a.duplicate && !a.ip.IsUnspecified() && !a.ip.IsMulticast() && !a.ip.IsLoopback() &&
		(a.ip.Is4() || !a.ip.IsLinkLocalUnicast())
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
	if a.deprecated {
		r -= deprecatedRank
	}
	return r
}

// deprecatedRank puts the best deprecated address behind any other one.
const deprecatedRank = 16

// best returns the address of a family to use if none was asked for, or the zero Addr: keep if that is global, and else
// global before link-local, permanent before dynamic, primary before secondary or temporary, and of
// equals the kernel's first. A deprecated one is used if there is no other, and keep then too. Without keep a new address would move a running node, such as one that goes from
// host to host (VRRP).
func (l *link) best(family int, keep netip.Addr) (best netip.Addr) {
	top := math.MinInt
	for _, a := range l.addrs {
		if !a.usable() || familyOf(a.ip) != family {
			continue
		}
		rank := a.rank()
		if a.ip == keep && a.ip.IsGlobalUnicast() {
			if !a.deprecated {
				return keep
			}
			rank += deprecatedRank / 2
		}
		if rank > top {
			top, best = rank, a.ip
		}
	}
	return best
}

// deprecates reports whether an address is one of l's, and deprecated.
func (l *link) deprecates(ip netip.Addr) bool {
	return slices.ContainsFunc(l.addrs, func(a address) bool { return a.ip == ip && a.deprecated })
}

func (l *link) has(ip netip.Addr) bool {
	return slices.ContainsFunc(l.addrs, func(a address) bool { return a.ip == ip && a.usable() })
}

// isTentative reports whether an address cannot be used yet.
func (h host) isTentative(ip netip.Addr) bool {
	return slices.ContainsFunc(h.links, func(l link) bool {
		return slices.ContainsFunc(l.addrs, func(a address) bool { return a.ip == ip && a.tentative })
	})
}

// refusal returns why l must not carry the overlay. The loopback may if the user asked for it by
// name.
func (l *link) refusal(loopback bool) error {
	switch {
	case l.loopback && !loopback:
		return errors.New("is the loopback")
	case dataplane.IsDeviceName(l.name):
		return errors.New("is an overlay device itself")
	}
	return nil
}

// addresses describes the addresses for a message.
func (l *link) addresses() string {
	if len(l.addrs) == 0 {
		return "no address"
	}
	var s []string
	for _, a := range l.addrs {
		switch {
		case a.ip.IsLoopback():
			s = append(s, a.ip.String()+" loopback")
		case a.deprecated:
			s = append(s, a.ip.String()+" deprecated")
		case a.duplicate:
			s = append(s, a.ip.String()+" duplicate")
		case a.ip.Is6() && a.ip.IsLinkLocalUnicast():
			s = append(s, a.ip.String()+" link-local")
		default:
			s = append(s, a.ip.String())
		}
	}
	return strings.Join(s, " ")
}

// maxDescribed bounds a message on hosts with thousands of pod interfaces.
const maxDescribed = 32

// weight orders links in a message: those that could be used first.
func (l *link) weight() int {
	switch {
	case slices.ContainsFunc(l.addrs, address.usable):
		return 2
	case len(l.addrs) > 0:
		return 1
	}
	return 0
}

// describe lists the links. Those without a usable address come last: on a host with many pods
// these are most of them.
func describe(links []link) string {
	sorted := slices.Clone(links)
	slices.SortStableFunc(sorted, func(a, b link) int { return cmp.Compare((&b).weight(), (&a).weight()) })
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
