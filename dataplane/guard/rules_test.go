package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

// rulesOf returns the rules of one chain, in words.
func rulesOf(c Config, w dataplane.Wanted, kernel bool, name string, devices ...int) (rules []string) {
	f := c.factsOf(w, kernel)
	f.indices, f.ipvs = devices, c.tracksIPVS()
	m := newMembers(&c, f.kind)
	m.admit(w.Peers, f.kind)
	f.sets = m.names()
	for _, chain := range (builder{&c, f}).build() {
		if chain.name != name {
			continue
		}
		for _, r := range chain.rules {
			rules = append(rules, r.String())
		}
	}
	return rules
}

// TestRules: what follows from what is wanted.
func TestRules(t *testing.T) {
	base := manyPeers(2)
	base.Networks, base.Subnets = prefixes("10.0.0.0/8"), prefixes("10.255.0.0/24")
	mixed := base
	mixed.Underlay = prefixes("10.200.0.1/32")
	split := mixed // IPv4 is over the underlay, IPv6 is not
	split.Networks, split.Subnets = append(prefixes("fd00::/16"), mixed.Networks...), append(prefixes("fd00:0:0:ff::/64"), mixed.Subnets...)
	two := base
	two.Peers = append(slices.Clone(base.Peers), dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("172.16.9.9")},
		Source: netip.MustParseAddr("203.0.113.9"), Subnets: prefixes("10.8.0.0/20")})
	strict := testConfig(t)
	with := func(change func(*Config)) Config { c := strict; change(&c); return c }
	to := "nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, "
	withGroups := strings.Replace(to, "vxlan flags ==", "vxlan flags & 0x08000000 ==", 1)
	outside := "nfproto ip, ip daddr != 10.255.0.0/24, drop bad_destination\nnfproto ip6, drop bad_destination\ndrop bad_source"
	both := two
	both.Peers = append(slices.Clone(two.Peers), dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("2001:db8::9")}, Subnets: prefixes("10.9.0.0/28")})
	other := "iifname != \"eth0\", jump other\n"
	loop := "iif == 1, drop unknown_vtep\n"
	broadcast := "nfproto ip, ip daddr == 10.255.0.255/32, drop bad_destination\n"
	away := "\nudp sport == 8472, l4proto == udp, nfproto ip, ip frag-off & 0x1fff == 0, ip daddr . ip daddr @pair44_32, drop egress"
	disguised := "nfproto ip, ip daddr . ip daddr != @pair44_32, @nh,0,8 == 0x45, return\nnfproto ip, ip saddr . ip saddr @pair44_32, fib saddr . iif oif exists, return"
	for words := 5; words <= 15; words++ { // of the IP header
		disguised += fmt.Sprintf("\nnfproto ip, @nh,%d,32 == 0x08000000, @nh,%d,32 & 0xffffff00 == 0x00000100, drop egress", 32*words+64, 32*words+96)
	}
	masqueraded := "l4proto == udp, nfproto ip, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, iifname == \"eth0\", fib saddr type local, drop egress\n"
	later := "nfproto ip, ip frag-off & 0x1fff != 0, return\nnfproto ip6, exthdr frag offset & 0xfff8 != 0, return\n"
	laterHere := strings.ReplaceAll(later, "return", "goto here")
	head := laterHere + "nfproto ip, fib daddr type == unicast, goto here\nnfproto ip6, fib daddr type == unicast, goto here\n" + other
	for _, c := range []struct {
		name   string
		config Config
		wanted dataplane.Wanted
		user   bool
		chain  string
		want   string
	}{
		{"without a secmark", with(func(c *Config) { c.noOrigins = true }), base, false, chainDatagrams, head + "vxlan vni != 1, goto stray\n" + to + `ip saddr . @th,336,32/24 @pair444_24, mark |= 0x100000, accept
` + to + `ip saddr . @th,336,32 @pair44_32, mark |= 0x100000, accept
goto reason`},
		{"groups, without a secmark", with(func(c *Config) { c.noOrigins, c.GBP = true, true }), base, false, chainDatagrams, head + "vxlan vni != 1, goto stray\n" + withGroups + `ip saddr . @th,336,32/24 @pair444_24, accept
` + withGroups + `ip saddr . @th,336,32 @pair44_32, accept
goto reason`},
		{"inner, without a secmark", with(func(c *Config) { c.noOrigins = true }), base, false, chainInner, broadcast + `mark & 0x100000 == 0, drop unknown_vtep
mark &= ^0x100000
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, accept
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr . ip saddr @pair44_32, accept
` + outside},
		{"inner", strict, base, false, chainInner, broadcast + `secmark == judged, udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
@th,16,16 is there, secmark == judged, accept
secmark . secmark != @pair44_32, drop unknown_vtep
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/24 @pair444_24, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr @pair44_32, goto admitted
` + outside},
		{"inner, over both", with(func(c *Config) { c.IPv6 = true }), both, false, chainInner, broadcast + `secmark == judged, udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
@th,16,16 is there, secmark == judged, accept
secmark . secmark != @pair44_32, secmark != @vtep4_32, drop unknown_vtep
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/20 @pair444_20, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/24 @pair444_24, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr @pair44_32, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/28 @origin444_28, goto admitted
` + outside},
		{"inner, IPv6 in the overlay", strict, split, false, chainInner, broadcast + `secmark == judged, udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
@th,16,16 is there, secmark == judged, accept
secmark . secmark != @pair44_32, drop unknown_vtep
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/24 @pair444_24, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr @pair44_32, goto admitted
nfproto ip6, l4proto == icmpv6, icmpv6 type == 133-137, drop bad_header
nfproto ip, ip daddr != 10.255.0.0/24, drop bad_destination
nfproto ip6, ip6 daddr != fd00:0:0:ff::/64, drop bad_destination
drop bad_source`},
		{"inner, with labels", with(func(c *Config) { c.labels = true }), base, false, chainInner, broadcast + `secmark == judged, udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
@th,16,16 is there, secmark == judged, secmark = 0, accept
secmark . secmark != @pair44_32, drop unknown_vtep
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/24 @pair444_24, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr @pair44_32, goto admitted
` + outside},
		{"admitted", strict, base, false, chainAdmitted, "l4proto != udp, accept\nsecmark = 0, accept"},
		{"admitted, with labels", with(func(c *Config) { c.labels = true }), base, false, chainAdmitted, "secmark = 0, accept"},
		{"arrive", strict, base, false, chainArrive, `iifname == "flannel.1", goto inner
udp dport == 8472, l4proto == udp, goto datagrams
goto here`},
		{"arrive, over IPv6", with(func(c *Config) { c.IPv6 = true }), base, false, chainArrive, `iifname == "flannel.1", goto inner
iifname == "flannel-v6.1", goto inner
udp dport == 8472, l4proto == udp, goto datagrams
goto here`},
		{"arrive, if this process forwards", strict, base, true, chainArrive, ``},
		{"input", strict, base, true, chainInput, `udp dport == 8472, l4proto == udp, goto datagrams
goto here`},
		{"input, if the kernel forwards", strict, base, false, chainInput, ``},
		{"inner, behind a NAT", with(func(c *Config) { c.Check, c.AnyPeerFrom = dataplane.SourceInner, prefixes("192.0.2.0/24") }), base, false, chainInner, broadcast + `mark & 0x100000 == 0, drop unknown_vtep
mark &= ^0x100000
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, accept
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr . ip saddr @pair44_32, accept
` + outside},
		{"any peer from the overlay", with(func(c *Config) { c.Check, c.AnyPeerFrom = dataplane.SourceInner, prefixes("10.0.0.0/16") }), dataplane.Wanted{Networks: base.Networks}, false, chainDatagrams, head + `vxlan vni != 1, goto stray
nfproto ip, ip saddr . ip saddr != @pair44_32, ip saddr == 10.0.0.0/8, drop unknown_vtep
goto reason`},
		{"addresses to which peers send", with(func(c *Config) { c.Local = []netip.Addr{netip.MustParseAddr("192.0.2.3")} }), dataplane.Wanted{}, false, chainDatagrams, laterHere + `nfproto ip, ip daddr != 192.0.2.3/32, fib daddr type == unicast, goto here
nfproto ip6, fib daddr type == unicast, goto here
` + other + `vxlan vni != 1, goto stray
nfproto ip, ip daddr != 192.0.2.3/32, drop bad_destination
goto reason`},
		{"strict", strict, base, false, chainDatagrams, head + "vxlan vni != 1, goto stray\n" + to + `ip saddr . @th,336,32/24 @pair444_24, secmark = ip saddr, accept
` + to + `ip saddr . @th,336,32 @pair44_32, secmark = ip saddr, accept
goto reason`},
		{"leases of two lengths", strict, two, false, chainDatagrams, head + "vxlan vni != 1, goto stray\n" + to + `ip saddr . @th,336,32/20 @pair444_20, secmark = ip saddr, accept
` + to + `ip saddr . @th,336,32/24 @pair444_24, secmark = ip saddr, accept
` + to + `ip saddr . @th,336,32 @pair44_32, secmark = ip saddr, accept
goto reason`},
		{"before there are peers", strict, dataplane.Wanted{}, false, chainDatagrams, head + "vxlan vni != 1, goto stray\ngoto reason"},
		{"sockets", strict, base, true, chainDatagrams, loop + other + "vxlan vni != 1, accept\n" + `nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32/24 @pair444_24, accept
nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32 @pair44_32, accept
nfproto ip, vxlan flags == 0x08000000, vxlan vni == 1, ip saddr . ip saddr @pair44_32, limit 500/s, accept
limit 50/s, accept
drop flood`},
		{"sockets of one network", with(func(c *Config) { c.Alone = true }), base, true, chainDatagrams, loop + other + `nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32/24 @pair444_24, accept
nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32 @pair44_32, accept
nfproto ip, vxlan flags == 0x08000000, vxlan vni == 1, ip saddr . ip saddr @pair44_32, limit 500/s, accept
limit 50/s, accept
drop flood`},
		{"stray", strict, base, false, chainStray, `secmark == judged, secmark = 0
nfproto ip, secmark . ip saddr != @pair44_32, secmark . secmark @pair44_32, secmark = 0
count bad_vni`},
		{"stray, over IPv6 too", with(func(c *Config) { c.IPv6 = true }), both, false, chainStray, `secmark == judged, secmark = 0
nfproto ip, secmark . ip saddr != @pair44_32, secmark . secmark @pair44_32, secmark = 0
nfproto ip, secmark . ip saddr != @pair44_32, secmark @vtep4_32, secmark = 0
nfproto ip6, secmark . ip6 saddr != @origin46_128, secmark . secmark @pair44_32, secmark = 0
nfproto ip6, secmark . ip6 saddr != @origin46_128, secmark @vtep4_32, secmark = 0
count bad_vni`},
		{"stray, without a secmark", with(func(c *Config) { c.noOrigins = true }), base, false, chainStray, "count bad_vni"},
		{"other", strict, base, false, chainOther, `iifname == "flannel.1", drop bad_destination
iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, vxlan vni == 1, drop unknown_vtep
iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, secmark = 0
iifkind == "vxlan", secmark = 0`},
		{"other, if this process forwards", strict, base, true, chainOther, `iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, drop unknown_vtep
iifkind == "vxlan", secmark = 0`},
		{"here", strict, base, false, chainHere, `secmark != 0, jump foreign
iifname == "eth0", goto plain
goto pods`},
		{"here, without a secmark", with(func(c *Config) { c.noOrigins = true }), base, false, chainHere, `iifname == "eth0", goto plain
goto pods`},
		{"here, if this process forwards", strict, base, true, chainHere, `iifname == "eth0", goto plain
iifname == "flannel.1", accept
goto pods`},
		{"here, what is outside of the overlay comes to this process", with(func(c *Config) { c.Check = dataplane.SourceOverlay }), base, true, chainHere, `nfproto ip6, iifname == "flannel.1", fib saddr type local, drop bad_source
iifname == "eth0", goto plain
iifname == "flannel.1", accept
goto pods`},
		{"foreign", strict, base, false, chainForeign, `iifkind == "vxlan", return
secmark == judged, secmark = 0
nfproto ip, secmark . ip saddr != @pair44_32, secmark . secmark @pair44_32, secmark = 0
iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, secmark = 0`},
		{"pods", with(func(c *Config) { c.Temporary = []string{"ovl.t1"} }), base, false, chainPods, `iif == 1, return
nfproto ip, ip saddr == 10.255.0.0/24, fib saddr . iif oif exists, return
iifname == "ovl.t1", return
nfproto ip, ip saddr == 10.255.0.0/24, goto astray
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, fib saddr . iif oif missing, goto astray`},
		{"astray", strict, base, false, chainAstray, `nfproto ip, ip saddr = 10.255.0.2, fib saddr . iif oif exists, drop bad_source
drop plain_source`},
		{"pods, plain is allowed", with(func(c *Config) { c.AllowPlain = true }), base, false, chainPods, `iif == 1, return
nfproto ip, ip saddr == 10.255.0.0/24, return
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, drop bad_source`},
		{"pods, plain is allowed before 5.6", with(func(c *Config) { c.AllowPlain, c.noKinds = true, true }), base, false, chainPods, ``},
		{"pods, direct routes", with(func(c *Config) { c.Direct = true }), base, true, chainPods, `iif == 1, return
nfproto ip, ip saddr == 10.255.0.0/24, fib saddr . iif oif exists, return
nfproto ip, ip saddr/24 @lease4_24, iifkind != "bond", iifkind != "team", iifkind != "vlan", iifkind != "vrf", fib saddr . iif oif missing, goto astray
nfproto ip, ip saddr/24 @lease4_24, return
nfproto ip, ip saddr == 10.255.0.0/24, goto astray
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, fib saddr . iif oif missing, goto astray`},
		{"pods, over the underlay", strict, mixed, false, chainPods, `iif == 1, return
nfproto ip, ip saddr == 10.255.0.0/24, fib saddr . iif oif exists, return
nfproto ip, ip saddr == 10.255.0.0/24, goto astray
nfproto ip, ip saddr/24 @lease4_24, fib saddr . iif oif missing, goto astray`},
		{"pods before 5.6", with(func(c *Config) { c.noKinds = true }), base, false, chainPods, `iif == 1, return
nfproto ip, ip saddr == 10.255.0.0/24, fib saddr . iif oif exists, return
nfproto ip, ip saddr == 10.255.0.0/24, goto astray
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, fib saddr . iif oif missing, goto astray`},
		{"here, if the underlay is the loopback device", with(func(c *Config) { c.Underlay, c.Link = "lo", 1 }), base, false, chainHere, "secmark != 0, jump foreign\ngoto pods"},
		{"plain", strict, base, false, chainPlain, `nfproto ip, ip saddr == 10.255.0.0/24, drop plain_source
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, drop plain_source`},
		{"plain is allowed", with(func(c *Config) { c.AllowPlain = true }), base, false, chainPlain, ``},
		{"plain, direct routes", with(func(c *Config) { c.Direct = true }), base, true, chainPlain, `nfproto ip, ip saddr/24 @lease4_24, return
nfproto ip, ip saddr == 10.255.0.0/24, drop plain_source
nfproto ip, ip saddr == 10.0.0.0/8, ip saddr != 10.255.0.0/24, drop plain_source`},
		{"plain, over the underlay", strict, mixed, false, chainPlain, `nfproto ip, ip saddr == 10.255.0.0/24, drop plain_source
nfproto ip, ip saddr/24 @lease4_24, drop plain_source`},
		{"plain, one family over the underlay", strict, split, false, chainPlain, `nfproto ip, ip saddr == 10.255.0.0/24, drop plain_source
nfproto ip, ip saddr/24 @lease4_24, drop plain_source
nfproto ip6, ip6 saddr == fd00:0:0:ff::/64, drop plain_source
nfproto ip6, ip6 saddr == fd00::/16, ip6 saddr != fd00:0:0:ff::/64, drop plain_source`},
		{"spoof, over the underlay", strict, mixed, false, chainSpoof, `nfproto ip, ip saddr == 10.255.0.0/24, return
nfproto ip, ip saddr/24 @lease4_24, drop bad_source
fib saddr type local, drop bad_source`},
		{"overlay", with(func(c *Config) { c.Check = dataplane.SourceOverlay }), base, false, chainInner, broadcast + `secmark == judged, udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
@th,16,16 is there, secmark == judged, accept
secmark . secmark != @pair44_32, drop unknown_vtep
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr/24 @pair444_24, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . ip saddr @pair44_32, goto admitted
nfproto ip, ip daddr == 10.255.0.0/24, secmark . secmark @pair44_32, ip saddr . ip saddr != @pair44_32, ip saddr != 10.0.0.0/8, ip saddr != 0.0.0.0/8, ip saddr != 127.0.0.0/8, ip saddr != 169.254.0.0/16, ip saddr != 224.0.0.0/3, goto admitted
` + outside},
		{"overlay, IPv6 in it", with(func(c *Config) { c.Check, c.noOrigins = dataplane.SourceOverlay, true }), split, false, chainInner, broadcast + `mark & 0x100000 == 0, drop unknown_vtep
mark &= ^0x100000
udp dport == 8472, l4proto == udp, fib daddr type != unicast, jump nested
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr/24 @lease4_24, accept
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr . ip saddr @pair44_32, accept
nfproto ip, ip daddr == 10.255.0.0/24, ip saddr/24 != @lease4_24, ip saddr . ip saddr != @pair44_32, ip saddr != 10.255.0.0/24, ip saddr != 0.0.0.0/8, ip saddr != 127.0.0.0/8, ip saddr != 169.254.0.0/16, ip saddr != 224.0.0.0/3, accept
nfproto ip6, l4proto == icmpv6, icmpv6 type == 133-137, drop bad_header
nfproto ip6, ip6 daddr == fd00:0:0:ff::/64, ip6 saddr == fd00::/16, ip6 saddr != fd00:0:0:ff::/64, accept
nfproto ip6, ip6 daddr == fd00:0:0:ff::/64, ip6 saddr != fd00::/16, ip6 saddr != ::/96, ip6 saddr != ::ffff:0.0.0.0/96, ip6 saddr != fe80::/10, ip6 saddr != ff00::/8, fib saddr type != local, anycast, accept
nfproto ip, ip daddr != 10.255.0.0/24, drop bad_destination
nfproto ip6, ip6 daddr != fd00:0:0:ff::/64, drop bad_destination
drop bad_source`},
		{"output", strict, base, false, chainLeave, `udp dport == 8472, jump to_port` + away},
		{"output of this process", strict, base, true, chainLeave, `udp dport == 8472, mark & 0x100000 != 0, accept
udp dport == 8472, jump to_port` + away},
		{"output, IPv6 in the overlay", strict, split, false, chainLeave, `nfproto ip6, skuid != 0, jump senders
udp dport == 8472, jump to_port` + away},
		{"senders", strict, split, false, chainSenders, `ip6 saddr == fd00::/16, ip6 saddr != fd00:0:0:ff::/64, mark & 0x100000 == 0, fib saddr type != local, anycast, drop bad_source
ip6 saddr == fd00:0:0:ff::/64, mark & 0x100000 == 0, fib saddr type != local, anycast, drop bad_source`},
		{"senders, no IPv6 in the overlay", strict, base, false, chainSenders, ""},
		{"output before 5.7", with(func(c *Config) { c.noIncoming = true }), base, false, chainLeave, `udp dport == 8472, mark & 0x100000 != 0, accept
udp dport == 8472, jump to_port` + away + `
oifkind == "vxlan", skuid >= 0, mark |= 0x100000, accept`},
		{"output before 5.6", with(func(c *Config) { c.noIncoming, c.noKinds = true, true }), base, false, chainLeave, `udp dport == 8472, mark & 0x100000 != 0, accept
udp dport == 8472, jump to_port` + away + `
oifname == "flannel.1", skuid >= 0, mark |= 0x100000, accept`},
		{"nested", strict, base, false, chainNested, later + "drop bad_destination"},
		{"egress", strict, base, false, chainEgress, later + `nfproto ip, @nh,0,8 != 0x45, iifname != "eth0", drop egress
nfproto ip, ip daddr . ip daddr @pair44_32, ip saddr . ip saddr @pair44_32, fib saddr . iif oif exists, accept
nfproto ip, ip daddr . ip daddr @pair44_32, drop egress
nfproto ip, ip saddr == 10.255.0.0/24, vxlan vni == 1, drop egress
nfproto ip, ip saddr == 10.255.0.0/24, ip frag-off & 0x3fff != 0, vxlan vni is there, accept
nfproto ip, ip saddr == 10.255.0.0/24, ip frag-off & 0x3fff != 0, drop fragment
vxlan vni == 1, fib saddr type local, drop egress
accept`},
		{"disguised", strict, base, false, chainDisguised, disguised},
		{"to the port", strict, base, false, chainToPort, "iifkind == \"vxlan\", accept\n" + later + `skuid >= 0, goto own
iifname != "eth0", l4proto == udp, nfproto ip, ip saddr . ip saddr != @pair44_32, ip daddr . ip daddr @pair44_32, drop egress
` + masqueraded + "l4proto == udp, vxlan vni == 1, fib saddr type local, drop egress\naccept"},
		{"to the port before 5.7", with(func(c *Config) { c.noIncoming = true }), base, false, chainToPort, later + "skuid >= 0, goto own\n" + masqueraded + "accept"},
		{"processes", strict, base, false, chainOwn, `oifkind == "vxlan", accept
l4proto != udp, accept
mark & 0x100000 != 0, accept
nfproto ip, @nh,0,8 != 0x45, drop egress
nfproto ip, ip daddr . ip daddr @pair44_32, drop egress
vxlan vni == 1, drop egress
accept`},
		{"processes, if this process forwards", with(func(c *Config) { c.Local = []netip.Addr{netip.MustParseAddr("192.0.2.3")} }), base, true, chainOwn, `oifkind == "vxlan", accept
l4proto != udp, accept
mark & 0x100000 != 0, accept
nfproto ip, @nh,0,8 != 0x45, drop egress
nfproto ip, ip daddr . ip daddr @pair44_32, drop egress
nfproto ip, ip daddr == 192.0.2.3/32, drop egress
vxlan vni == 1, drop egress
accept`},
		{"processes before 5.7", with(func(c *Config) { c.noIncoming = true }), base, false, chainOwn, `oifkind == "vxlan", skuid >= 0, mark |= 0x100000, accept
oifkind == "vxlan", accept
l4proto != udp, accept
mark & 0x100000 != 0, accept
nfproto ip, @nh,0,8 != 0x45, drop egress
nfproto ip, ip daddr . ip daddr @pair44_32, drop egress
vxlan vni == 1, drop egress
accept`},
		{"narrow paths", with(func(c *Config) { c.MinPathMTU = 1280 }), base, false, chainHere, `@nh,72,8 == 0x01, nfproto ip, icmp type 3 code 4, icmp mtu < 1280, ip frag-off & 0x1fff == 0, quoted ip daddr . quoted ip daddr @pair44_32, drop narrow_path
@nh,72,8 == 0x01, nfproto ip, icmp type 3 code 4, icmp mtu < 1280, ip frag-off & 0x1fff == 0, ip frag-off & 0x3fff != 0, drop narrow_path
secmark != 0, jump foreign
iifname == "eth0", goto plain
goto pods`},
		{"the link is known", with(func(c *Config) { c.Link = 3 }), base, false, chainForward, `jump disguised
iif == 3, goto plain
iifname == "flannel.1", udp dport == 8472, l4proto == udp, jump egress
iifname == "flannel.1", accept
oifname == "flannel.1", goto spoof
udp dport == 8472, l4proto == udp, jump egress`},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := strings.ReplaceAll(c.want, "lease4_24 of ip saddr", "ip saddr/24 @lease4_24")
			if diff := cmp.Diff(want, strings.Join(rulesOf(c.config, c.wanted, !c.user, c.chain), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRulesOfDevices: what the index of a device, which is cheaper than its name, decides first.
func TestRulesOfDevices(t *testing.T) {
	w := manyPeers(2)
	w.Subnets = prefixes("10.255.0.0/24", "fd00:0:0:ff::/64")
	c := testConfig(t)
	c.Link = 3
	for chain, want := range map[string]string{
		chainArrive: `iif == 9, goto usual
@nh,0,32 == 0x4500, 74-119, ip frag-off == 0, @th,288,16 & 0x3fff == 0, @nh,72,8 == 0x11, udp dport == 8472, iif == 3, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32/24 @pair444_24, secmark = judged, accept
@nh,0,8 == 0x45, @nh,72,8 == 0x11, udp dport == 8472, iif == 3, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32/24 @pair444_24, secmark = ip saddr, accept
iifname == "flannel.1", goto inner
udp dport == 8472, l4proto == udp, goto datagrams
goto here`,
		chainUsual: `secmark == judged, @nh,72,8 != 0x01, udp dport != 8472, ip daddr != 10.255.0.255/32, accept
ip daddr == 10.255.0.0/24, @nh,0,8 == 0x45, @nh,72,8 == 0x06, secmark . ip saddr/24 @pair444_24, accept
ip daddr == 10.255.0.0/24, @nh,0,8 == 0x45, ip daddr != 10.255.0.255/32, @nh,72,8 == 0x11, udp dport != 8472, secmark . ip saddr/24 @pair444_24, secmark = 0, accept
ip daddr == 10.255.0.0/24, @nh,0,8 == 0x45, ip daddr != 10.255.0.255/32, @nh,72,8 == 0x01, icmp type != 3, secmark . ip saddr/24 @pair444_24, accept
goto inner`,
		chainForward: `iif == 9, udp dport == 8472, l4proto == udp, jump egress
iif == 9, nfproto ip, ip daddr == 10.255.0.0/24, accept
iif == 9, nfproto ip6, ip6 daddr == fd00:0:0:ff::/64, accept
oif == 9, iif != 3, nfproto ip, ip saddr == 10.255.0.0/24, accept
oif == 9, iif != 3, nfproto ip6, ip6 saddr == fd00:0:0:ff::/64, accept
jump disguised
iif == 3, goto plain
iif == 9, accept
iifname == "flannel.1", udp dport == 8472, l4proto == udp, jump egress
iifname == "flannel.1", accept
oif == 9, goto spoof
oifname == "flannel.1", goto spoof
udp dport == 8472, l4proto == udp, jump egress`,
		chainHere: `secmark != 0, jump foreign
iif == 3, goto plain
goto pods`,
		chainDatagrams: `nfproto ip, ip frag-off & 0x1fff != 0, goto here
nfproto ip6, exthdr frag offset & 0xfff8 != 0, goto here
nfproto ip, fib daddr type == unicast, goto here
nfproto ip6, fib daddr type == unicast, goto here
iif != 3, jump other
vxlan vni != 1, goto stray
nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32/24 @pair444_24, secmark = ip saddr, accept
nfproto ip, vxlan flags == 0x08000000, vxlan vni . reserved == 1 . 0, @th,224,16 == 0x0800, @th,368,32 == 10.255.0.0/24, ip saddr . @th,336,32 @pair44_32, secmark = ip saddr, accept
goto reason`,
		chainLeave: `iif == 9, accept
nfproto ip6, skuid != 0, jump senders
oif == 9, accept
udp dport == 8472, jump to_port
udp sport == 8472, l4proto == udp, nfproto ip, ip frag-off & 0x1fff == 0, ip daddr . ip daddr @pair44_32, drop egress`,
		chainSentOn: "",
	} {
		if diff := cmp.Diff(want, strings.Join(rulesOf(c, w, true, chain, 9), "\n")); diff != "" {
			t.Errorf("%s: %s", chain, diff)
		}
	}
}
