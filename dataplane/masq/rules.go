package masq

import (
	"net/netip"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// family is an address family.
type family = nft.Family

const (
	ipv4 = nft.IPv4
	ipv6 = nft.IPv6
)

func multicast(f family) netip.Prefix {
	if f == ipv6 {
		return netip.MustParsePrefix("ff00::/8")
	}
	return netip.MustParsePrefix("224.0.0.0/4")
}

// mark is set by kube-proxy on packets that it masquerades itself.
const mark = 0x4000

// verdict is what a rule does with a packet.
type verdict uint8

const (
	leave verdict = iota // leave the chain, untranslated
	accept
	masquerade
)

// match is a condition on an address; the zero match accepts all.
type match struct {
	prefix netip.Prefix
	not    bool
}

// portRange is the range of source ports for masquerading; the zero range means any port.
type portRange struct{ low, high uint16 }

// rule is one rule for any packet filter: all conditions must be met.
type rule struct {
	tunnel   uint16 // UDP to that port from a local address
	marked   bool   // the mark has the bit [mark]
	udp      bool
	src, dst match
	in, out  string // comes and leaves by that interface; empty: by any
	do       verdict
	ports    portRange // of masquerade
	random   bool      // of masquerade: choose the port fully at random
	comment  string    // whose rule it is, for people
}

// The comments of all rules, in flannel's style.
const (
	masqComment    = "overlayd masq"
	forwardComment = "overlayd forward"
)

// ruleSet is all rules of one family. Without rules, old ones are removed.
type ruleSet struct {
	family  family
	network netip.Prefix // invalid if the family is not used
	masq    []rule
	forward []rule
}

func (s ruleSet) equal(o ruleSet) bool {
	return s.family == o.family && s.network == o.network && slices.Equal(s.masq, o.masq) && slices.Equal(s.forward, o.forward)
}

func (s ruleSet) isEmpty() bool { return len(s.masq) == 0 && len(s.forward) == 0 }

// build makes the rules of both families, those of IPv4 first.
func build(c Config, w dataplane.Wanted) []ruleSet {
	return []ruleSet{buildFamily(c, w, ipv4), buildFamily(c, w, ipv6)}
}

func buildFamily(c Config, w dataplane.Wanted, f family) ruleSet {
	s := ruleSet{family: f}
	network, ok := ofFamily(w.Networks, f)
	own, okOwn := ofFamily(w.Subnets, f)
	if !ok || !okOwn {
		return s
	}
	s.network = network
	mixed := slices.ContainsFunc(w.Underlay, network.Overlaps)
	if c.Masquerade {
		s.masq = masqueradeRules(c, f, own, network, mixed)
	}
	switch {
	case c.Forward && mixed:
		s.forward = mixedForwardRules(c, own)
	case c.Forward:
		s.forward = []rule{{src: match{prefix: network}, do: accept}, {dst: match{prefix: network}, do: accept}}
	}
	comment(s.masq, masqComment)
	comment(s.forward, forwardComment)
	return s
}

// masqueradeRules are flannel's. mixed says that the network holds addresses of the underlay, too: see
// mixedRules.
func masqueradeRules(c Config, f family, own, network netip.Prefix, mixed bool) []rule {
	rules := []rule{{tunnel: c.Port, do: leave}, {marked: true, do: leave}}
	if mixed {
		return append(rules, mixedRules(c, f, own, network)...)
	}
	inNetwork, outside := match{prefix: network}, match{prefix: network, not: true}
	toOwn := match{prefix: own}
	return slices.Concat(rules, []rule{
		{src: toOwn, dst: inNetwork, do: leave},
		{src: inNetwork, dst: toOwn, do: leave},
		{src: outside, dst: toOwn, do: leave},
	},
		c.masquerade(rule{src: inNetwork, dst: match{prefix: multicast(f), not: true}}),
		c.masquerade(rule{src: outside, dst: inNetwork}))
}

// mixedRules tell by the interface what goes into the overlay, because an address does not tell. What
// hosts send each other is left as it is, and what a pod sends to a host is translated as if the
// host lay outside. If packets also reach pods by the underlay, all of the network is taken for the
// overlay, as flannel does, but for what this host itself sends.
func mixedRules(c Config, f family, own, network netip.Prefix) []rule {
	toOwn, others := match{prefix: own}, match{prefix: own, not: true}
	rules := []rule{{dst: toOwn, do: leave}}
	if c.Direct {
		rules = append(rules, rule{src: toOwn, dst: match{prefix: network}, do: leave})
		rules = append(rules, c.masquerade(rule{src: toOwn, dst: match{prefix: multicast(f), not: true}})...)
		return append(rules, c.masquerade(rule{src: match{prefix: network, not: true}, dst: match{prefix: network}})...)
	}
	for _, name := range c.devices() {
		rules = append(rules, rule{src: toOwn, out: name, do: leave})
	}
	rules = append(rules, c.masquerade(rule{src: toOwn, dst: match{prefix: multicast(f), not: true}})...)
	for _, name := range c.devices() {
		rules = append(rules, c.masquerade(rule{src: others, dst: match{prefix: network}, out: name})...)
	}
	return rules
}

func comment(rules []rule, text string) {
	for i := range rules {
		rules[i].comment = text
	}
}

// mixedForwardRules accept what comes from or goes to own pods, and what the overlay device takes or
// gives: the rest of the network is not the overlay's to open.
func mixedForwardRules(c Config, own netip.Prefix) []rule {
	rules := []rule{{src: match{prefix: own}, do: accept}, {dst: match{prefix: own}, do: accept}}
	for _, name := range c.devices() {
		rules = append(rules, rule{in: name, do: accept}, rule{out: name, do: accept})
	}
	return rules
}

// devices are the names that overlay devices of the network may have.
func (c Config) devices() []string {
	return []string{dataplane.DeviceName(c.VNI), dataplane.DeviceNameV6(c.VNI)}
}

// masquerade returns the rules that masquerade what r matches: for UDP only with ports that are
// not the tunnel's.
func (c Config) masquerade(r rule) []rule {
	r.do, r.random = masquerade, c.RandomFully
	udp := r
	udp.udp, udp.ports = true, portsBeside(c.Port)
	return []rule{udp, r}
}

// portsBeside returns the larger of the unprivileged port ranges on either side of a port.
func portsBeside(port uint16) portRange {
	const first, last = 1024, 65535
	if port < first {
		return portRange{first, last}
	}
	if port-first > last-port {
		return portRange{first, port - 1}
	}
	return portRange{port + 1, last}
}

func ofFamily(prefixes []netip.Prefix, f family) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is4() == (f == ipv4) {
			return p.Masked(), true
		}
	}
	return netip.Prefix{}, false
}
