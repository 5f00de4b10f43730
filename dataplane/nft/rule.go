package nft

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Expr is one expression of a rule, its data not decoded.
type Expr struct {
	Name string
	Data []byte // netlink attributes
}

// Rule is a rule as the kernel tells it.
type Rule struct {
	Chain   string
	Handle  uint64 // names the rule within its table
	Exprs   []Expr
	Comment string // what nft and iptables show as the rule's comment
}

// Text returns all of the rule but its counters: it is equal for rules that do the same.
func (r Rule) Text() string {
	var b strings.Builder
	for _, x := range r.Exprs {
		if x.Name != "counter" {
			fmt.Fprintf(&b, "%s %x\n", x.Name, x.Data)
		}
	}
	if r.Comment != "" {
		fmt.Fprintf(&b, "comment %q\n", r.Comment)
	}
	return b.String()
}

// IsPlainJump reports whether the rule has a verdict and no conditions.
func (r Rule) IsPlainJump() bool {
	for _, x := range r.Exprs {
		if x.Name != "counter" && x.Name != "immediate" {
			return false
		}
	}
	return true
}

// Prefixes returns the addresses and prefixes that the rule compares with.
func (r Rule) Prefixes(f Family) []netip.Prefix {
	var found []netip.Prefix
	bits, loaded := 0, false
	for _, x := range r.Exprs {
		switch x.Name {
		case "payload":
			var p expr.Payload
			err := expr.Unmarshal(uint8(f), x.Data, &p)
			loaded = err == nil && p.Base == expr.PayloadBaseNetworkHeader && (p.Offset == f.Source() || p.Offset == f.Destination())
			bits = 8 * int(p.Len)
		case "bitwise":
			var b expr.Bitwise
			if expr.Unmarshal(uint8(f), x.Data, &b) == nil {
				bits, _ = net.IPMask(b.Mask).Size()
			}
		case "cmp":
			var c expr.Cmp
			if err := expr.Unmarshal(uint8(f), x.Data, &c); err != nil || !loaded {
				continue
			}
			b := make([]byte, f.addrLen())
			copy(b, c.Data)
			if a, ok := netip.AddrFromSlice(b); ok {
				found = append(found, netip.PrefixFrom(a, bits))
			}
			loaded = false
		}
	}
	return found
}

// Target returns the chain that the rule jumps or goes to, or "".
func (r Rule) Target() string {
	for _, x := range r.Exprs {
		if x.Name != "immediate" {
			continue
		}
		if _, v, err := ParseImmediate(x.Data); err == nil && v != nil && (v.Code == unix.NFT_JUMP || v.Code == unix.NFT_GOTO) {
			return v.Chain
		}
	}
	return ""
}

// Chain is a chain as the kernel tells it.
type Chain struct {
	Table, Name string
	Exists      bool
	Hook        string   // of a base chain: type, hook, priority and policy, not decoded
	Base        *Hook    // the same, decoded; nil unless it is a base chain
	Devices     []string // of a base chain of one or more interfaces
	Uses        int      // rules that it has, and jumps to it
	Rules       []Rule
}

// Text returns all of the chain but its counters.
func (c Chain) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chain %s %s %v %x\n", c.Table, c.Name, c.Exists, c.Hook)
	for _, r := range c.Rules {
		b.WriteString("rule\n" + r.Text())
	}
	return b.String()
}
