package firewall

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/xtables"
)

// legacy is one table of iptables-legacy.
type legacy struct {
	table xtables.Table
	rules []xtables.Rule
	at    map[int]int // index of a rule by where it begins
}

func readLegacy(f nft.Family, name string) (*legacy, error) {
	t, err := xtables.Read(f, name)
	if err != nil {
		return nil, err
	}
	return newLegacy(t), nil
}

func newLegacy(t xtables.Table) *legacy {
	l := &legacy{table: t, rules: t.Rules(), at: map[int]int{}}
	for i, r := range l.rules {
		l.at[r.At] = i
	}
	return l
}

// builtIn are the names of the chains at the hooks, in the order of their numbers.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// drops follows a packet through the built-in chains of the table.
func (l *legacy) drops(p Packet) (list []Drop) {
	for _, hook := range p.hooks() {
		first, policy, ok := l.table.First(hook)
		if !ok {
			continue
		}
		pass := legacyPass{legacy: l, packet: p, hook: hook}
		may, rule := pass.chain(first, policy, 0)
		if may&dropped != 0 {
			list = append(list, Drop{Packet: p, Family: l.table.Family, Legacy: true, Table: l.table.Name, Chain: builtIn[hook],
				Rule: rule, Sure: may&^onward == dropped})
		}
	}
	return list
}

// legacyPass is the way of a packet through one built-in chain.
type legacyPass struct {
	*legacy
	packet Packet
	hook   uint32
	steps  int
}

// chain follows the packet from the rule that begins at an offset. The policy, if the chain has one, is its last rule.
func (p *legacyPass) chain(first, policy, depth int) (outcome, string) {
	const anything = accepted | dropped | onward
	var w walk
	i, ok := p.at[first]
	for ; ok && i < len(p.rules) && depth <= maxDepth; i++ {
		r := p.rules[i]
		if p.steps == maxSteps {
			return anything, w.rule
		}
		p.steps++
		text := "a rule of table " + p.table.Name
		if r.At == policy {
			text = "policy drop"
		}
		match := p.match(r)
		may, inner := p.becomes(r, depth, match)
		if inner != "" {
			text = inner
		}
		if w.meet(match, may, text) {
			if may := w.chainEnd(true); depth > 0 || may&onward == 0 || r.At == policy {
				return may, w.rule
			}
			i = p.at[policy] - 1 // to return from a built-in chain is to come to its policy
		}
	}
	return anything, w.rule
}

// becomes returns what a rule does with the packet; the rule of another chain that may drop it is named.
func (p *legacyPass) becomes(r xtables.Rule, depth int, match tri) (outcome, string) {
	switch {
	case match == no:
		return onward, ""
	case r.Target.Name != "":
		return extension{r.Target.Name, uint32(r.Target.Revision), r.Target.Data}.target(), ""
	case r.Verdict == xtables.Drop:
		return dropped, ""
	case r.Verdict == xtables.Return:
		return returned, ""
	case r.Verdict < 0:
		return accepted, ""
	case r.Verdict == r.Next: // no target
		return onward, ""
	}
	may, rule := p.chain(r.Verdict, -1, depth+1)
	if r.Goto && may&onward != 0 {
		may = may&^onward | returned
	}
	return may, rule
}

// match reports whether the packet meets all conditions of a rule.
func (p *legacyPass) match(r xtables.Rule) tri {
	if r.Fragment || r.Chain != "" {
		return no
	}
	m := address(r.Src, known4(p.packet.Src.AsSlice(), len(r.Src.Mask))).and(address(r.Dst, known4(p.packet.Dst.AsSlice(), len(r.Dst.Mask))))
	in, ok := p.packet.comes(p.hook)
	m = m.and(device(r.In, in, ok))
	out, ok := p.packet.leaves(p.hook)
	m = m.and(device(r.Out, out, ok))
	if r.Protocol.Number != 0 {
		m = m.and(is((r.Protocol.Number == uint16(p.packet.Protocol)) != r.Protocol.Not))
	}
	for _, e := range r.Matches {
		m = m.and(extension{e.Name, uint32(e.Revision), e.Data}.match(p.table.Family, p.packet))
	}
	return m
}

// known4 is an address, or as many unknown bytes.
func known4(addr []byte, n int) some {
	if len(addr) != n {
		return unknown(n)
	}
	return known(addr)
}

func address(a xtables.Address, have some) tri {
	want := a.Addr.AsSlice()
	match := yes
	for i, mask := range a.Mask {
		switch {
		case mask == 0:
		case have.known[i] != whole:
			match = match.and(maybe)
		case (have.bytes[i]^want[i])&mask != 0:
			match = no
		}
	}
	if a.Not {
		return match.not()
	}
	return match
}

func device(d xtables.Interface, name string, ok bool) tri {
	if !slices.ContainsFunc(d.Mask, func(b byte) bool { return b != 0 }) {
		return yes
	}
	if !ok {
		return maybe
	}
	have := make([]byte, len(d.Name))
	copy(have, name)
	match := true
	for i, mask := range d.Mask {
		match = match && (have[i]^d.Name[i])&mask == 0
	}
	return is(match != d.Not)
}

// legacyDrops asks the tables of iptables-legacy that are in use in one family.
func legacyDrops(f nft.Family, packets []Packet) (list []Drop, err error) {
	names, err := xtables.Names(f)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil // they are listed to root alone: package masq tells of it
	}
	errs := []error{err}
	for _, name := range names {
		l, err := readLegacy(f, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, p := range packets {
			if p.family() == f {
				list = append(list, l.drops(p)...)
			}
		}
	}
	return list, errors.Join(errs...)
}
