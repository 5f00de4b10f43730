package guard

import (
	"strings"

	"github.com/google/nftables/expr"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// rule is one rule: all conditions must be met.
type rule struct {
	conds []cond
	drop  dataplane.Drop // counted, if do is drop or tally
	do    verdict
	to    string // the chain, if do is jump or go
}

type verdict uint8

const (
	none verdict = iota // only what the conditions do
	accept
	drop
	back // to the chain that jumped
	jump
	proceed
	notrack
	tally // count as dropped what the kernel drops
)

// String returns the rule much as the nft command writes it.
func (r rule) String() string {
	var words []string
	for _, c := range r.conds {
		words = append(words, c.text)
	}
	switch r.do {
	case accept:
		words = append(words, "accept")
	case drop:
		words = append(words, "drop "+r.drop.String())
	case back:
		words = append(words, "return")
	case jump:
		words = append(words, "jump "+r.to)
	case proceed:
		words = append(words, "goto "+r.to)
	case notrack:
		words = append(words, "notrack")
	case tally:
		words = append(words, "count "+r.drop.String())
	}
	return strings.Join(words, ", ")
}

// encode returns the rule for the kernel.
func (r rule) encode() ([][]byte, error) {
	var list []expr.Any
	for _, c := range r.conds {
		list = append(list, c.exprs...)
	}
	switch r.do {
	case accept:
		list = append(list, &expr.Verdict{Kind: expr.VerdictAccept})
	case drop:
		list = append(list, nft.Count(r.drop.String()), &expr.Verdict{Kind: expr.VerdictDrop})
	case back:
		list = append(list, &expr.Verdict{Kind: expr.VerdictReturn})
	case jump:
		list = append(list, &expr.Verdict{Kind: expr.VerdictJump, Chain: r.to})
	case proceed:
		list = append(list, &expr.Verdict{Kind: expr.VerdictGoto, Chain: r.to})
	case notrack:
		list = append(list, &expr.Notrack{})
	case tally:
		list = append(list, nft.Count(r.drop.String()))
	}
	return nft.Encode(nft.Inet, list...)
}

// chain is one chain: a base chain, unless hook is nil.
type chain struct {
	name  string
	hook  *nft.Hook
	rules []rule
}

func (c *chain) add(do verdict, conds ...cond) { c.rules = append(c.rules, rule{conds: conds, do: do}) }

// skipLater takes fragments without ports back to the chain that asked for the port.
func (c *chain) skipLater() {
	for _, f := range []family{ipv4, ipv6} {
		c.add(back, isLater(f)...)
	}
}

func (c *chain) goTo(to string, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: proceed, to: to})
}

func (c *chain) jumpTo(to string, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: jump, to: to})
}

func (c *chain) drop(why dataplane.Drop, conds ...cond) {
	c.rules = append(c.rules, rule{conds: conds, do: drop, drop: why})
}

func (c *chain) count(why dataplane.Drop) { c.rules = append(c.rules, rule{do: tally, drop: why}) }

func base(hook, priority int) *nft.Hook {
	return &nft.Hook{Type: "filter", Number: uint32(hook), Priority: int32(priority)}
}
