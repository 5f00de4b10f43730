package firewall

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// chains are those of one family of nftables. Rules are read when a packet comes to their chain.
type chains struct {
	reader nft.Reader
	links  links // of the packets
	byName map[place]nft.Chain
	bases  []nft.Chain
	rules  map[place][]nft.Rule
}

// place names a chain.
type place struct{ table, chain string }

// errTooMany means that a chain has more rules than are followed.
var errTooMany = fmt.Errorf("more than %d rules in one chain", maxRules)

func readChains(r nft.Reader, l links) (*chains, error) {
	list, err := r.ChainsOf(func(table string) bool { return !isGuard(table) })
	if err != nil {
		return nil, err
	}
	c := &chains{reader: r, links: l, byName: map[place]nft.Chain{}, rules: map[place][]nft.Rule{}}
	for _, chain := range list {
		c.byName[place{chain.Table, chain.Name}] = chain
		if chain.Base != nil {
			c.bases = append(c.bases, chain)
		}
	}
	return c, nil
}

// isGuard reports whether a table is a guard's, which drops what is not the overlay's.
func isGuard(table string) bool {
	_, guard := dataplane.GuardedVNI(table)
	return guard
}

// sees reports whether a base chain sees the packet.
func (c *chains) sees(b nft.Chain, p Packet) bool {
	if len(b.Devices) > 0 { // in family netdev, or at the ingress of family inet
		hook, device := p.device()
		if c.reader.Family == nft.Inet && hook == unix.NF_NETDEV_INGRESS {
			hook = inetIngress
		}
		return b.Base.Number == hook && slices.Contains(b.Devices, device)
	}
	return slices.Contains(p.hooks(), b.Base.Number)
}

// inetIngress is NF_INET_INGRESS of linux/netfilter.h.
const inetIngress = 5

// drops follows a packet through every base chain that sees it.
func (c *chains) drops(p Packet) (list []Drop, err error) {
	for _, b := range c.bases {
		if !c.sees(b, p) {
			continue
		}
		pass := &pass{chains: c, packet: p, hook: b.Base.Number}
		may, rule, perr := pass.chain(place{b.Table, b.Name}, 0)
		if may&onward != 0 && b.Base.Drop {
			may |= dropped
			if rule == "" {
				rule = "policy drop"
			}
		} else if may&onward != 0 {
			may |= accepted
		}
		err = errors.Join(err, perr)
		if may&dropped != 0 {
			list = append(list, Drop{Packet: p, Family: c.reader.Family, Table: b.Table, Chain: b.Name, Rule: rule, Sure: may&^onward == dropped && perr == nil})
		}
	}
	return list, err
}

// pass is the way of a packet through one base chain.
type pass struct {
	chains *chains
	packet Packet
	hook   uint32
	steps  int
}

// chain follows the packet through a chain. The rule is the first that may drop it.
func (p *pass) chain(at place, depth int) (outcome, string, error) {
	rules, err := p.chains.rulesOf(at)
	if err != nil || depth > maxDepth {
		return accepted | dropped | onward, "", err
	}
	var w walk
	for _, r := range rules {
		if p.steps == maxSteps {
			return accepted | dropped | onward, w.rule, errTooMany
		}
		p.steps++
		x := rule{reader: p.chains.reader, family: p.chains.reader.Family, table: at.table, hook: p.hook, packet: p.packet, links: p.chains.links}
		match, v := x.evaluate(r)
		text := describe(r)
		if match != no && v.jump != "" {
			inner, err := outcome(0), error(nil)
			if inner, text, err = p.chain(place{at.table, v.jump}, depth+1); err != nil {
				return accepted | dropped | onward, text, err
			}
			if v.may = inner; v.goes && inner&onward != 0 {
				v.may = inner&^onward | returned
			}
		}
		if w.meet(match, v.may, text) {
			return w.chainEnd(true), w.rule, nil
		}
	}
	return w.chainEnd(false), w.rule, nil
}

func (c *chains) rulesOf(at place) ([]nft.Rule, error) {
	rules, read := c.rules[at]
	if read {
		return rules, nil
	}
	if c.byName[at].Uses > maxRules {
		return nil, errTooMany
	}
	rules, err := c.reader.Rules(at.table, at.chain)
	if err == nil {
		c.rules[at] = rules
	}
	return rules, err
}

// describe names a rule.
func describe(r nft.Rule) string {
	text := fmt.Sprintf("rule %d of chain %s", r.Handle, r.Chain)
	if r.Comment != "" {
		text += fmt.Sprintf(" (%q)", r.Comment)
	}
	return text
}

// nftDrops asks the nftables of one family.
func nftDrops(f nft.Family, packets []Packet) (list []Drop, err error) {
	l := linksOf(packets)
	err = nft.Read(f, func(r nft.Reader) error {
		list = nil
		c, err := readChains(r, l)
		if err != nil {
			return err
		}
		var errs []error
		for _, p := range packets {
			if f == nft.IPv4 && p.family() != nft.IPv4 || f == nft.IPv6 && p.family() != nft.IPv6 {
				continue
			}
			d, err := c.drops(p)
			list, errs = append(list, d...), append(errs, err)
		}
		return errors.Join(errs...)
	})
	for _, absent := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT} {
		if errors.Is(err, absent) {
			return nil, nil // a kernel without nftables, or without this family
		}
	}
	if err != nil {
		return list, fmt.Errorf("read nftables of family %s: %w", f, err)
	}
	return list, nil
}
