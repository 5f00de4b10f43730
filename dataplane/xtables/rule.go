package xtables

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// The verdicts of a standard target: NF_DROP, NF_ACCEPT and NF_REPEAT of linux/netfilter.h, negative, less 1.
const (
	Drop   = -1
	Accept = -2
	Return = -5
)

// Rule is one rule of a table.
type Rule struct {
	At       int // where it begins in the table, in bytes
	Next     int // where the rule after it begins
	Src, Dst Address
	In, Out  Interface
	Protocol Protocol
	Fragment bool // it is about fragments, which no other match looks at
	Matches  []Extension
	Target   Extension
	// Verdict is that of a standard target, whose name is empty: Drop, Accept or Return, or where the chain begins to
	// which it jumps.
	Verdict int
	Goto    bool   // it jumps and does not come back
	Chain   string // of a rule that begins a chain: its name
}

// Address is a condition on an address: the bits of Mask are those of Addr, or not if Not is true.
type Address struct {
	Addr netip.Addr
	Mask []byte
	Not  bool
}

// Interface is a condition on a name: the bytes of Mask are those of Name. Without a mask it is met by any.
type Interface struct {
	Name, Mask []byte
	Not        bool
}

// Protocol is a condition on the protocol; 0 is met by any.
type Protocol struct {
	Number uint16
	Not    bool
}

// Extension is a match or a target.
type Extension struct {
	Name     string
	Revision uint8
	Data     []byte
}

// fields says where the parts of struct ipt_ip or ip6t_ip6 are, in bytes.
type fields struct{ addr, in, protocol, flags, inverted int }

func fieldsOf(f Family) fields {
	if f == nft.IPv6 {
		return fields{addr: 16, in: 64, protocol: 128, flags: 131, inverted: 132}
	}
	return fields{addr: 4, in: 16, protocol: 80, flags: 82, inverted: 83}
}

// Bits of the fields flags and inverted. Families number the flags differently.
const (
	notIn, notOut, notSrc, notDst, notProtocol = 0x01, 0x02, 0x08, 0x10, 0x40

	goto4, fragment4 = 0x02, 0x01
	goto6            = 0x04
)

// Rules returns the rules of all chains in the order of the table.
func (t Table) Rules() (rules []Rule) {
	at := 0
	t.Each(func(e []byte) {
		rules = append(rules, t.rule(at, e))
		at += len(e)
	})
	return rules
}

// ruleAt returns the rule that begins at an offset; ok is false if none can.
func (t Table) ruleAt(at int) (r Rule, ok bool) {
	if l := layoutOf(t.Family); at >= 0 && at+l.size <= len(t.Entries) {
		if n := uint16At(t.Entries[at:], l.next); n >= l.size && at+n <= len(t.Entries) {
			return t.rule(at, t.Entries[at:at+n]), true
		}
	}
	return r, false
}

func (t Table) rule(at int, e []byte) Rule {
	f := fieldsOf(t.Family)
	inverted, flags := e[f.inverted], e[f.flags]
	r := Rule{At: at, Next: at + len(e), Protocol: Protocol{binary.NativeEndian.Uint16(e[f.protocol:]), inverted&notProtocol != 0}}
	part := func(i, n int) []byte { return e[i : i+n] }
	address := func(i int, not bool) Address {
		a, _ := netip.AddrFromSlice(part(i*f.addr, f.addr))
		return Address{a, part((2+i)*f.addr, f.addr), not}
	}
	r.Src, r.Dst = address(0, inverted&notSrc != 0), address(1, inverted&notDst != 0)
	const n = unix.IFNAMSIZ
	r.In = Interface{part(f.in, n), part(f.in+2*n, n), inverted&notIn != 0}
	r.Out = Interface{part(f.in+n, n), part(f.in+3*n, n), inverted&notOut != 0}
	if t.Family == nft.IPv6 {
		r.Goto = flags&goto6 != 0
	} else {
		r.Goto, r.Fragment = flags&goto4 != 0, flags&fragment4 != 0
	}
	l := layoutOf(t.Family)
	target := uint16At(e, l.target)
	for i := l.size; i < target; {
		x, size := extension(e, i)
		if size == 0 {
			break
		}
		r.Matches = append(r.Matches, x)
		i += size
	}
	r.Target, _ = extension(e, target)
	if r.Target.Name == "" && len(r.Target.Data) >= 4 {
		r.Verdict = int(int32(binary.NativeEndian.Uint32(r.Target.Data)))
	}
	r.Chain, _ = ChainName(t.Family, e)
	return r
}

// extension reads struct xt_entry_match or xt_entry_target: its size, name, revision and data. The size is 0 if e does not hold all of it.
func extension(e []byte, at int) (x Extension, size int) {
	const nameAt, nameLen, head = 2, 29, 32
	if at < 0 || at+head > len(e) {
		return x, 0
	}
	size = uint16At(e, at)
	if size < head || at+size > len(e) {
		return x, 0
	}
	name, _, _ := bytes.Cut(e[at+nameAt:at+nameAt+nameLen], []byte{0})
	return Extension{Name: string(name), Revision: e[at+head-1], Data: e[at+head : at+size]}, size
}

// First returns where the built-in chain at a hook begins, and where its policy is; ok is false if the table has none.
func (t Table) First(hook uint32) (first, policy int, ok bool) {
	if hook >= uint32(len(t.info.hook)) || t.info.valid&(1<<hook) == 0 {
		return 0, 0, false
	}
	return int(t.info.hook[hook]), int(t.info.underflow[hook]), true
}
