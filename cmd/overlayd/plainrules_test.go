package main

import (
	"fmt"
	"strings"
)

// rules are the traffic rules of a host, in the words of iptables-save or nft, with the place of each rule
// in its chain. The base chains of iptables have no places: others may have rules there.
func (w *world) rules(h *plainHost) (lines []string) {
	for f, is := range h.tables {
		if is {
			lines = append(lines, []string{"nft ip flannel-ipv4", "nft ip6 flannel-ipv6"}[f])
		}
	}
	for n, o := range h.overlays {
		if !o.rules {
			continue
		}
		for f := range w.families() {
			words := strings.NewReplacer(
				"VNI", fmt.Sprint(w.networks[n].vni), "OWN", o.subnets[f], "NETWORK", w.networks[n].is[f],
				"MULTICAST", []string{"224.0.0.0/4", "ff00::/8"}[f], "TABLE", []string{"ipv4", "ipv6"}[f], "IP", []string{"ip", "ip6"}[f])
			chains := w.chains(o.by)
			for i, c := range chains {
				if c.jump == "" && i == 0 && o.by != modeFlanneld {
					lines = append(lines, words.Replace(c.table))
				}
				lines = append(lines, w.chain(c, words)...)
			}
		}
	}
	return lines
}

// hasRules reports whether daemons of a kind have any in their own chains.
func (w *world) hasRules(by string) bool { return len(w.chains(by)) > 0 }

// ruleChain is a chain of one's own with its rules.
type ruleChain struct {
	table, name, jump string // the rule in the base chain that leads to it; none in a table of nft
	rules             string
}

// chains are those of a daemon's rules.
func (w *world) chains(by string) (chains []ruleChain) {
	masq, forward := w.masquerades(by), by != modeFlanneld || len(w.networks) == 1 // two flannelds share chains
	add := func(wanted bool, c ruleChain) {
		if wanted {
			chains = append(chains, c)
		}
	}
	switch {
	case by == modeFlanneld && w.filter == filterNFT:
		add(masq, ruleChain{"nft IP flannel-TABLE", "postrtg", "", flannelMasqNFT})
		add(forward, ruleChain{"nft IP flannel-TABLE", "forward", "", flannelForwardNFT})
	case by == modeFlanneld:
		add(masq, ruleChain{string(w.filter) + " IP nat", "FLANNEL-POSTRTG", `-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`, flannelMasqIPT})
		add(forward, ruleChain{string(w.filter) + " IP filter", "FLANNEL-FWD", `-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`, flannelForwardIPT})
	case w.filter == filterNFT:
		add(masq, ruleChain{"nft IP overlayd-VNI", "postrouting", "", ourMasqNFT})
	default:
		add(masq, ruleChain{string(w.filter) + " IP nat", "OVERLAYD-VNI-POSTRTG", `-A POSTROUTING -m comment --comment "overlayd masq" -j OVERLAYD-VNI-POSTRTG`, ourMasqIPT})
		add(true, ruleChain{string(w.filter) + " IP filter", "OVERLAYD-VNI-FWD", `-A FORWARD -m comment --comment "overlayd forward" -j OVERLAYD-VNI-FWD`, ourForwardIPT})
	}
	return chains
}

// chain is one chain as text.
func (w *world) chain(c ruleChain, words *strings.Replacer) (lines []string) {
	where := c.table + " " + c.name
	lines = append(lines, words.Replace(where))
	if c.jump != "" {
		lines = append(lines, words.Replace(c.table+" "+c.jump))
	}
	for i, rule := range strings.Split(strings.TrimSpace(c.rules), "\n") {
		if rule != "" {
			lines = append(lines, words.Replace(fmt.Sprintf("%s %d: %s", where, i+1, rule)))
		}
	}
	return lines
}

// The rules of flanneld v0.28.4 (facts of flannel, 6), and those of overlayd, which are the same but for the
// tunnel's own packets and port.
const (
	flannelMasqIPT = `
-m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-s OWN -d NETWORK -m comment --comment "flanneld masq" -j RETURN
-s NETWORK -d OWN -m comment --comment "flanneld masq" -j RETURN
! -s NETWORK -d OWN -m comment --comment "flanneld masq" -j RETURN
-s NETWORK ! -d MULTICAST -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
! -s NETWORK -d NETWORK -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`
	flannelForwardIPT = `
-s NETWORK -m comment --comment "flanneld forward" -j ACCEPT
-d NETWORK -m comment --comment "flanneld forward" -j ACCEPT`
	flannelMasqNFT = `
type nat hook postrouting priority srcnat; policy accept;
meta mark 0x00004000 return
IP saddr OWN IP daddr NETWORK return
IP saddr NETWORK IP daddr OWN return
IP saddr != OWN IP daddr NETWORK return
IP saddr NETWORK IP daddr != MULTICAST masquerade fully-random
IP saddr != NETWORK IP daddr NETWORK masquerade fully-random`
	flannelForwardNFT = `
type filter hook forward priority filter; policy accept;
IP saddr NETWORK accept
IP daddr NETWORK accept`

	ourMasqIPT = `
-p udp -m udp --dport 8472 -m addrtype --src-type LOCAL -m comment --comment "overlayd masq" -j RETURN
-m mark --mark 0x4000/0x4000 -m comment --comment "overlayd masq" -j RETURN
-s OWN -d NETWORK -m comment --comment "overlayd masq" -j RETURN
-s NETWORK -d OWN -m comment --comment "overlayd masq" -j RETURN
! -s NETWORK -d OWN -m comment --comment "overlayd masq" -j RETURN
-s NETWORK ! -d MULTICAST -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
-s NETWORK ! -d MULTICAST -m comment --comment "overlayd masq" -j MASQUERADE --random-fully
! -s NETWORK -d NETWORK -p udp -m comment --comment "overlayd masq" -j MASQUERADE --to-ports 8473-65535 --random-fully
! -s NETWORK -d NETWORK -m comment --comment "overlayd masq" -j MASQUERADE --random-fully`
	ourForwardIPT = `
-s NETWORK -m comment --comment "overlayd forward" -j ACCEPT
-d NETWORK -m comment --comment "overlayd forward" -j ACCEPT`
	ourMasqNFT = `
type nat hook postrouting priority srcnat; policy accept;
udp dport 8472 fib saddr type local return comment "overlayd masq"
meta mark & 0x00004000 == 0x00004000 return comment "overlayd masq"
IP saddr OWN IP daddr NETWORK return comment "overlayd masq"
IP saddr NETWORK IP daddr OWN return comment "overlayd masq"
IP saddr != NETWORK IP daddr OWN return comment "overlayd masq"
meta l4proto udp IP saddr NETWORK IP daddr != MULTICAST masquerade to :8473-65535 fully-random comment "overlayd masq"
IP saddr NETWORK IP daddr != MULTICAST masquerade fully-random comment "overlayd masq"
meta l4proto udp IP saddr != NETWORK IP daddr NETWORK masquerade to :8473-65535 fully-random comment "overlayd masq"
IP saddr != NETWORK IP daddr NETWORK masquerade fully-random comment "overlayd masq"`
)
