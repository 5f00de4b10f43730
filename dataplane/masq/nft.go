package masq

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nftState is what of one network is in nftables in one family: the own table, and
// what is in those of iptables-nft together with the base chains that jump there.
type nftState struct {
	family      family
	names       names
	chains      int // of the own table; -1 without one
	own         nftChain
	nat, fwd    nftChain
	post, front nftChain // POSTROUTING and FORWARD

	generation uint32 // how often nftables had changed before it was read
}

// nftWant is what is to be there. The zero nftWant is nothing.
type nftWant struct {
	own     []rule // in the own table
	nat     []rule // at POSTROUTING, of iptables-nft
	forward []rule // at FORWARD, if there is one
	foreign bool   // iptables-nft writes its tables itself
}

// readNFT reads the state of one moment.
func readNFT(f family, n names) (s nftState, err error) {
	err = reading(f, func(r reader) error {
		s = nftState{family: f, names: n}
		if s.generation, err = r.generation(); err != nil {
			return err
		}
		if s.chains, err = r.chainCount(n.table); err != nil {
			return err
		}
		for _, c := range []struct {
			to          *nftChain
			table, name string
		}{
			{&s.own, n.table, ownChain}, {&s.nat, natTable, n.masq}, {&s.fwd, filterTable, n.fwd},
			{&s.post, natTable, postrouting}, {&s.front, filterTable, forwardChain},
		} {
			if *c.to, err = r.chain(c.table, c.name); err != nil {
				return err
			}
		}
		if now, err := r.generation(); err != nil || now != s.generation {
			return errors.Join(err, errChanging)
		}
		return nil
	})
	return s, err
}

// jumps are the rules of a base chain that lead to a chain.
func jumps(f family, base nftChain, to string) []nftRule {
	return slices.DeleteFunc(slices.Clone(base.rules), func(r nftRule) bool { return r.target(f) != to })
}

// text is all of the state that matters: it changes only if somebody changes what
// is ours, or if a chain appears that is to jump to ours.
func (s nftState) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.chains, s.front.exists)
	for _, c := range []nftChain{s.own, s.nat, s.fwd} {
		b.WriteString(c.text())
	}
	for _, r := range append(jumps(s.family, s.post, s.names.masq), jumps(s.family, s.front, s.names.fwd)...) {
		b.WriteString("jump " + r.text())
	}
	return b.String()
}

// steps returns what makes w true, all in one batch. What is right already is
// written again: whoever looks first finds no difference.
func (s nftState) steps(w nftWant) (list []step, err error) {
	f, n := s.family, s.names
	switch {
	case len(w.own) > 0:
		// Adding first makes the deletion succeed, and that removes what is not ours.
		list = append(list, newTable(f, n.table), deleteTable(f, n.table), newTable(f, n.table), newChain(f, n.table, ownChain, true))
		rules, err := newRules(f, n.table, ownChain, w.own, false)
		if err != nil {
			return nil, err
		}
		list = append(list, rules...)
	case s.chains >= 0:
		list = append(list, deleteTable(f, n.table))
	}
	if w.foreign {
		return list, nil
	}
	forward, err := s.forwardSteps(w)
	if err != nil {
		return nil, err
	}
	return append(append(list, forward...), removeChain(f, s.nat, s.post)...), nil
}

func (s nftState) forwardSteps(w nftWant) ([]step, error) {
	f, chain := s.family, s.names.fwd
	if len(w.forward) == 0 || !s.front.exists {
		return removeChain(f, s.fwd, s.front), nil
	}
	list := []step{newChain(f, filterTable, chain, false), deleteRule(f, filterTable, chain, 0)}
	rules, err := newRules(f, filterTable, chain, w.forward, true)
	if err != nil {
		return nil, err
	}
	list = append(list, rules...)
	have := jumps(f, s.front, chain)
	if len(have) == 1 && have[0].isPlainJump() {
		return list, nil
	}
	for _, r := range have {
		list = append(list, deleteRule(f, filterTable, forwardChain, r.handle))
	}
	exprs, err := jump(f, chain)
	if err != nil {
		return nil, err
	}
	return append(list, newRule(f, filterTable, forwardChain, exprs)), nil
}

func newRules(f family, table, chain string, rules []rule, counter bool) (list []step, err error) {
	for _, r := range rules {
		exprs, err := expressions(f, r, counter)
		if err != nil {
			return nil, err
		}
		list = append(list, newRule(f, table, chain, exprs))
	}
	return list, nil
}

// removeChain removes a chain of an iptables table with the jumps to it.
func removeChain(f family, c, base nftChain) (list []step) {
	if !c.exists {
		return nil
	}
	for _, r := range jumps(f, base, c.name) {
		list = append(list, deleteRule(f, base.table, base.name, r.handle))
	}
	return append(list, deleteRule(f, c.table, c.name, 0), deleteChain(f, c.table, c.name))
}

// droppers names the chains that drop what is forwarded, other than FORWARD: an
// accept of ours has no place in those, which a firewall manages.
func droppers(f family) (list []string, err error) {
	for _, f := range []family{f, unix.NFPROTO_INET} {
		err := reading(f, func(r reader) error {
			chains, err := r.chains()
			for _, c := range chains {
				if c.drops && (c.table != filterTable || c.name != forwardChain || f == unix.NFPROTO_INET) {
					list = append(list, fmt.Sprintf("%s %s %s", f, c.table, c.name))
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// flannels returns what removes flannel's rules for a network; the tables of
// iptables-nft are left out where foreign is true.
func flannels(f family, network netip.Prefix, foreign bool) (list []step, err error) {
	err = reading(f, func(r reader) error {
		list = nil
		chains, err := r.chains()
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, c := range chains {
			var steps []step
			switch base := baseOf(c.name); {
			case isFlannels(c.table) && !seen[c.table]:
				seen[c.table] = true
				steps, err = r.leaveTable(c.table, network)
			case !foreign && base.table == c.table && isFlannels(c.name):
				steps, err = r.leaveChain(c, base, network)
			}
			if err != nil {
				return err
			}
			list = append(list, steps...)
		}
		return nil
	})
	return list, err
}

// baseOf returns where a chain of iptables, of flannel or ours, is jumped to.
func baseOf(chain string) nftChain {
	if strings.HasSuffix(chain, masqSuffix) {
		return nftChain{table: natTable, name: postrouting}
	}
	return nftChain{table: filterTable, name: forwardChain}
}

func (r reader) leaveTable(table string, network netip.Prefix) ([]step, error) {
	rules, err := r.rules(table, "")
	if err != nil {
		return nil, err
	}
	mine, alone := about(r.family, rules, network)
	if alone {
		return []step{deleteTable(r.family, table)}, nil
	}
	return r.deleteRules(table, mine), nil
}

func (r reader) leaveChain(c, base nftChain, network netip.Prefix) (list []step, err error) {
	if c.rules, err = r.rules(c.table, c.name); err != nil {
		return nil, err
	}
	mine, alone := about(r.family, c.rules, network)
	if !alone {
		return r.deleteRules(c.table, mine), nil
	}
	if base.rules, err = r.rules(base.table, base.name); err != nil {
		return nil, err
	}
	return removeChain(r.family, c, base), nil
}

func (r reader) deleteRules(table string, rules []nftRule) (list []step) {
	for _, rule := range rules {
		list = append(list, deleteRule(r.family, table, rule.chain, rule.handle))
	}
	return list
}

// about returns the rules that name a network, and whether no other network is named.
func about(f family, rules []nftRule, network netip.Prefix) (mine []nftRule, alone bool) {
	others := false
	for _, r := range rules {
		p := r.prefixes(f)
		switch {
		case slices.Contains(p, network):
			mine = append(mine, r)
		case len(p) > 0:
			others = true
		}
	}
	return mine, len(mine) > 0 && !others
}

// reading gives read a socket, and tries again where others write meanwhile.
func reading(f family, read func(reader) error) (err error) {
	for range 10 {
		if err = once(f, read); !errors.Is(err, errChanging) {
			return err
		}
	}
	return err
}

func once(f family, read func(reader) error) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return read(reader{c, f})
}
