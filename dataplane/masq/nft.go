package masq

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// nftState is the content of nftables for one network and family: our table, and our chains in
// the tables of iptables-nft with the base chains that jump there.
type nftState struct {
	family      family
	names       names
	chains      int  // of the own table; -1 without one
	dormant     bool // no packet meets the own table
	own         nft.Chain
	nat, fwd    nft.Chain
	post, front nft.Chain // POSTROUTING and FORWARD

	generation uint32 // how often nftables had changed before it was read
}

// nftWant is the wanted content. The zero nftWant means no rules.
type nftWant struct {
	own     []rule // in the own table
	nat     []rule // at POSTROUTING, of iptables-nft
	forward []rule // at FORWARD, if there is one
	foreign bool   // iptables-nft writes its tables itself
}

// readNFT reads a consistent state.
func readNFT(f family, n names) (s nftState, err error) {
	err = nft.Read(f, func(r nft.Reader) error {
		s = nftState{family: f, names: n}
		if s.generation, err = r.Generation(); err != nil {
			return err
		}
		var flags uint32
		if s.chains, flags, err = r.Table(n.table); err != nil {
			return err
		}
		s.dormant = flags&unix.NFT_TABLE_F_DORMANT != 0
		for _, c := range []struct {
			to          *nft.Chain
			table, name string
		}{
			{&s.own, n.table, ownChain}, {&s.nat, natTable, n.masq}, {&s.fwd, filterTable, n.fwd},
			{&s.post, natTable, postrouting}, {&s.front, filterTable, forwardChain},
		} {
			if *c.to, err = r.Chain(c.table, c.name); err != nil {
				return err
			}
		}
		if now, err := r.Generation(); err != nil || now != s.generation {
			return errors.Join(err, nft.ErrChanging)
		}
		return nil
	})
	return s, err
}

// jumps returns the rules of a base chain that jump to a chain.
func jumps(base nft.Chain, to string) []nft.Rule {
	return slices.DeleteFunc(slices.Clone(base.Rules), func(r nft.Rule) bool { return r.Target() != to })
}

// text is the state that matters: it changes only if somebody changes our tables or chains, or
// if a base chain appears that must jump to ours.
func (s nftState) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.chains, s.dormant, s.front.Exists)
	for _, c := range []nft.Chain{s.own, s.nat, s.fwd} {
		b.WriteString(c.Text())
	}
	for _, r := range append(jumps(s.post, s.names.masq), jumps(s.front, s.names.fwd)...) {
		b.WriteString("jump " + r.Text())
	}
	return b.String()
}

// sourceNAT is the hook of chains that masquerade.
func sourceNAT() *nft.Hook {
	return &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100} // NF_IP_PRI_NAT_SRC
}

// steps returns the steps that make w true, for one batch. Rules that are already right are
// written again: the caller has found a difference.
func (s nftState) steps(w nftWant) (list []nft.Step, err error) {
	f, n := s.family, s.names
	switch {
	case len(w.own) > 0:
		// Adding first makes the deletion succeed, and that removes what is not ours.
		list = append(list, nft.NewTable(f, n.table), nft.DeleteTable(f, n.table), nft.NewTable(f, n.table), nft.NewChain(f, n.table, ownChain, sourceNAT()))
		rules, err := newRules(f, n.table, ownChain, w.own, false)
		if err != nil {
			return nil, err
		}
		list = append(list, rules...)
	case s.chains >= 0:
		list = append(list, nft.DeleteTable(f, n.table))
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

func (s nftState) forwardSteps(w nftWant) ([]nft.Step, error) {
	f, chain := s.family, s.names.fwd
	if len(w.forward) == 0 || !s.front.Exists {
		return removeChain(f, s.fwd, s.front), nil
	}
	list := []nft.Step{nft.NewChain(f, filterTable, chain, nil), nft.DeleteRule(f, filterTable, chain, 0)}
	rules, err := newRules(f, filterTable, chain, w.forward, true)
	if err != nil {
		return nil, err
	}
	list = append(list, rules...)
	have := jumps(s.front, chain)
	if len(have) == 1 && have[0].IsPlainJump() && have[0].Comment == forwardComment {
		return list, nil
	}
	for _, r := range have {
		list = append(list, nft.DeleteRule(f, filterTable, forwardChain, r.Handle))
	}
	exprs, err := nft.Jump(f, chain)
	if err != nil {
		return nil, err
	}
	return append(list, nft.NewRule(f, filterTable, forwardChain, exprs, forwardComment)), nil
}

func newRules(f family, table, chain string, rules []rule, counter bool) (list []nft.Step, err error) {
	for _, r := range rules {
		exprs, err := expressions(f, r, counter)
		if err != nil {
			return nil, err
		}
		list = append(list, nft.NewRule(f, table, chain, exprs, r.comment))
	}
	return list, nil
}

// removeChain removes a chain of an iptables table with the jumps to it.
func removeChain(f family, c, base nft.Chain) (list []nft.Step) {
	if !c.Exists {
		return nil
	}
	for _, r := range jumps(base, c.Name) {
		list = append(list, nft.DeleteRule(f, base.Table, base.Name, r.Handle))
	}
	return append(list, nft.DeleteRule(f, c.Table, c.Name, 0), nft.DeleteChain(f, c.Table, c.Name))
}

// flannels returns the steps that remove flannel's rules for a network; the tables of
// iptables-nft are left out if foreign is true.
func flannels(f family, network netip.Prefix, foreign bool) (list []nft.Step, err error) {
	err = nft.Read(f, func(r nft.Reader) error {
		list = nil
		chains, err := r.Chains()
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, c := range chains {
			var steps []nft.Step
			switch base := baseOf(c.Name); {
			case isFlannels(c.Table) && !seen[c.Table]:
				seen[c.Table] = true
				steps, err = leaveTable(r, c.Table, network)
			case !foreign && base.Table == c.Table && isFlannels(c.Name):
				steps, err = leaveChain(r, c, base, network)
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

// baseOf returns the base chain that jumps to a chain of flannel or ours in a table of iptables.
func baseOf(chain string) nft.Chain {
	if strings.HasSuffix(chain, masqSuffix) {
		return nft.Chain{Table: natTable, Name: postrouting}
	}
	return nft.Chain{Table: filterTable, Name: forwardChain}
}

func leaveTable(r nft.Reader, table string, network netip.Prefix) ([]nft.Step, error) {
	rules, err := r.Rules(table, "")
	if err != nil {
		return nil, err
	}
	mine, alone := about(r.Family, rules, network)
	if alone {
		return []nft.Step{nft.DeleteTable(r.Family, table)}, nil
	}
	return deleteRules(r.Family, table, mine), nil
}

func leaveChain(r nft.Reader, c, base nft.Chain, network netip.Prefix) (list []nft.Step, err error) {
	if c.Rules, err = r.Rules(c.Table, c.Name); err != nil {
		return nil, err
	}
	mine, alone := about(r.Family, c.Rules, network)
	if !alone {
		return deleteRules(r.Family, c.Table, mine), nil
	}
	if base.Rules, err = r.Rules(base.Table, base.Name); err != nil {
		return nil, err
	}
	return removeChain(r.Family, c, base), nil
}

func deleteRules(f family, table string, rules []nft.Rule) (list []nft.Step) {
	for _, rule := range rules {
		list = append(list, nft.DeleteRule(f, table, rule.Chain, rule.Handle))
	}
	return list
}

// about returns the rules that name a network, and whether no other network is named.
func about(f family, rules []nft.Rule, network netip.Prefix) (mine []nft.Rule, alone bool) {
	others := false
	for _, r := range rules {
		p := r.Prefixes(f)
		switch {
		case slices.Contains(p, network):
			mine = append(mine, r)
		case len(p) > 0:
			others = true
		}
	}
	return mine, len(mine) > 0 && !others
}
