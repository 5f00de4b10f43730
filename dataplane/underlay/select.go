package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// host is the kernel's state of this host.
type host struct {
	links    []link
	defaults [2][]egress // default routes of the main tables of IPv4 and IPv6, best first
	reach    egress      // to criteria.canReach
	reachErr error
}

// egress is the interface by which packets to a destination leave, and their source address if
// the kernel chooses one.
type egress struct {
	index int
	src   netip.Addr
}

// pick is the interface that one option asks for, and its address if the option asks for
// that too. [criteria.check] decides whether the interface is usable.
type pick struct {
	link *link
	addr netip.Addr
	// loopback is set if the user named the interface or its address.
	loopback bool
}

// choose returns the first usable interface that c asks for.
func (c criteria) choose(h host) (Interface, error) {
	if len(h.links) == 0 {
		return Interface{}, errNoInterface
	}
	failed := &SelectError{Links: describe(h.links), Unnamed: !c.named()}
	for _, step := range c.steps(h) {
		p, err := step.find()
		if err == nil {
			var got Interface
			if got, err = c.check(p); err == nil {
				return got, nil
			}
		}
		failed.Tried = append(failed.Tried, &OptionError{step.field, step.value, err})
	}
	return Interface{}, failed
}

// step is one thing to try, and the option that asks for it.
type step struct {
	field Field
	value string
	find  func() (pick, error)
}

func (c criteria) steps(h host) []step {
	var out []step
	for _, v := range c.iface {
		out = append(out, step{FieldIface, v, func() (pick, error) { return byNameOrIP(h.links, v) }})
	}
	for _, re := range c.regex {
		out = append(out, step{FieldIfaceRegex, re.String(), func() (pick, error) { return byRegex(h.links, re) }})
	}
	if c.canReach.IsValid() {
		out = append(out, step{FieldCanReach, c.canReach.String(), func() (pick, error) { return c.byReach(h) }})
	}
	if c.named() {
		return out
	}
	if own := c.ownPublic(h.links); len(own) > 0 {
		return own
	}
	return c.defaultSteps(c.lastFirst(h))
}

// ownPublic finds the interface that has a public address.
func (c criteria) ownPublic(links []link) []step {
	var picks [2]pick
	for f, a := range c.public {
		if p, err := byAddr(links, a); err == nil && p.link.refusal(false) == nil {
			picks[f] = p
		}
	}
	if l4, l6 := picks[0].link, picks[1].link; l4 != nil && l6 != nil && l4 != l6 {
		return []step{{FieldPublicIP, c.public[0].String(), func() (pick, error) {
			return pick{}, errTwoInterfaces(c.public[0].String(), l4.name, c.public[1].String(), l6.name)
		}}}
	}
	for f, p := range picks {
		if p.link != nil {
			return []step{{publicFields[f], c.public[f].String(), func() (pick, error) { return p, nil }}}
		}
	}
	return nil
}

// lastFirst puts the default routes by the interface in use before all others of their family, as long as it works: another
// one with a lower metric, of a VPN or a second link, does not move a running node. flanneld chooses only when it starts.
func (c criteria) lastFirst(h host) host {
	if !slices.ContainsFunc(h.links, func(l link) bool { return l.index == c.last.Index && l.up && l.carrier }) {
		return h
	}
	for f, routes := range h.defaults {
		isOther := func(r egress) int {
			if r.index == c.last.Index {
				return 0
			}
			return 1
		}
		h.defaults[f] = slices.SortedStableFunc(slices.Values(routes), func(a, b egress) int { return isOther(a) - isOther(b) })
	}
	return h
}

// defaultSteps tries the default routes of the family that is wanted first.
func (c criteria) defaultSteps(h host) (out []step) {
	if c.wanted[0] && c.wanted[1] {
		l4, l6 := c.usable(h, 0), c.usable(h, 1)
		if l4 != "" && l6 != "" && l4 != l6 {
			return []step{{"", defaultRoute, func() (pick, error) {
				return pick{}, errTwoInterfaces("that of IPv4", l4, "that of IPv6", l6)
			}}}
		}
	}
	order := []int{0, 1}
	if c.wanted[1] && !c.wanted[0] {
		slices.Reverse(order)
	}
	for _, f := range order {
		for _, r := range h.defaults[f] {
			out = append(out, step{"", defaultRoute, func() (pick, error) { return byRoute(h.links, r) }})
		}
	}
	if len(out) == 0 {
		out = append(out, step{"", defaultRoute, func() (pick, error) { return pick{}, errors.New("the main table has none") }})
	}
	return out
}

// usable returns the interface that a family's default routes lead to. One whose address is deprecated does not count: of two
// interfaces it would keep the other one from being used.
func (c criteria) usable(h host, family int) string {
	for _, r := range h.defaults[family] {
		if p, err := byRoute(h.links, r); err == nil {
			if got, err := c.check(p); err == nil && !p.link.deprecates([2]End{got.IPv4, got.IPv6}[family].Local) {
				return got.Name
			}
		}
	}
	return ""
}

// check turns a pick into an Interface, or returns why it cannot be used.
func (c criteria) check(p pick) (Interface, error) {
	l := p.link
	if err := l.refusal(p.loopback); err != nil {
		return Interface{}, fmt.Errorf("%s: %w", l.name, err)
	}
	if l.mtu <= 0 {
		return Interface{}, fmt.Errorf("%s: its MTU is %d", l.name, l.mtu)
	}
	out := Interface{Name: l.name, Index: l.index, MTU: l.mtu, IPv4: c.end(p, 0), IPv6: c.end(p, 1)}
	ends := [2]End{out.IPv4, out.IPv6}
	if !ends[0].Local.IsValid() && !ends[1].Local.IsValid() {
		return Interface{}, fmt.Errorf("%s: %s", l.name, l.addresses())
	}
	for f, a := range c.public {
		if a.IsValid() && !ends[f].Local.IsValid() {
			return Interface{}, &OptionError{publicFields[f], a.String(), fmt.Errorf("%s: has no %s address to send from", l.name, familyNames[f])}
		}
	}
	return out, nil
}

// end is the pick in one family.
func (c criteria) end(p pick, family int) (e End) {
	public := c.public[family]
	switch {
	case p.addr.IsValid() && familyOf(p.addr) == family:
		e.Local = p.addr
	case p.link.has(public):
		e.Local = public // one of several addresses: the source is what the others send to
	default:
		e.Local = p.link.best(family, [2]netip.Addr{c.last.IPv4.Local, c.last.IPv6.Local}[family])
	}
	if e.Public = e.Local; e.Local.IsValid() && public.IsValid() {
		e.Public = public
	}
	return e
}

func byNameOrIP(links []link, v string) (pick, error) {
	if a, err := netip.ParseAddr(v); err == nil {
		p, err := byAddr(links, a.Unmap())
		p.loopback = true
		return p, err
	}
	for i := range links {
		if links[i].name == v {
			return pick{link: &links[i], loopback: true}, nil
		}
	}
	return pick{}, errors.New("no such interface")
}

func byAddr(links []link, a netip.Addr) (pick, error) {
	for i := range links {
		if links[i].has(a) {
			return pick{link: &links[i], addr: a}, nil
		}
	}
	return pick{}, errors.New("no interface has this address for use")
}

// byRegex ignores interfaces that are unusable or down, so that a broad expression finds a
// usable one.
func byRegex(links []link, re *regexp.Regexp) (pick, error) {
	ok := func(l *link) bool {
		return slices.ContainsFunc(l.addrs, address.usable) && l.up && l.refusal(false) == nil
	}
	for _, deprecated := range []bool{false, true} { // those only if no other matches
		for i := range links {
			for _, a := range links[i].addrs {
				if ok(&links[i]) && a.usable() && a.deprecated == deprecated && re.MatchString(a.ip.String()) {
					return pick{link: &links[i], addr: a.ip}, nil
				}
			}
		}
	}
	for i := range links {
		if ok(&links[i]) && re.MatchString(links[i].name) {
			return pick{link: &links[i]}, nil
		}
	}
	return pick{}, errors.New("matches no address and no name of a usable interface")
}

// byReach follows the route. A route to an address of this host leads to the loopback; the
// interface that has the address is meant then, as all hosts may be given the address of
// one of them.
func (c criteria) byReach(h host) (pick, error) {
	if p, err := byAddr(h.links, c.canReach); err == nil {
		return p, nil
	}
	if h.reachErr != nil {
		return pick{}, h.reachErr
	}
	return byRoute(h.links, h.reach)
}

func byRoute(links []link, r egress) (pick, error) {
	for i := range links {
		if links[i].index != r.index {
			continue
		}
		p := pick{link: &links[i]}
		// The source may be an address of another interface: hosts that route by
		// BGP over unnumbered links have theirs on the loopback.
		if _, err := byAddr(links, r.src); err == nil {
			p.addr = r.src
		}
		return p, nil
	}
	return pick{}, fmt.Errorf("leads to interface number %d, which is gone", r.index)
}
