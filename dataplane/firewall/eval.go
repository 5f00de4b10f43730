package firewall

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// rule evaluates the expressions of one rule of nftables, in their order.
type rule struct {
	reader nft.Reader
	family nft.Family // of the table
	table  string
	hook   uint32
	packet Packet
	links  links

	registers some
	match     tri // of the conditions so far
	verdict   verdict
	done      bool // no later expression has an effect
}

// registerBytes is the size of all data registers.
const registerBytes = 64

// evaluate returns whether the packet meets the conditions of r, and what becomes of it then.
func (x rule) evaluate(r nft.Rule) (tri, verdict) {
	x.registers, x.match, x.verdict = unknown(registerBytes), yes, verdict{may: onward}
	for _, e := range r.Exprs {
		if x.expression(e); x.match == no || x.done {
			break
		}
	}
	return x.match, x.verdict
}

// condition adds a condition of the rule.
func (x *rule) condition(t tri) { x.match = x.match.and(t) }

// ends says what becomes of the packet.
func (x *rule) ends(v verdict) { x.verdict, x.done = v, true }

// register returns where a register begins, in bytes: the first four hold 16 bytes, the other numbering is of 4 bytes each.
func register(n uint32) (at int, ok bool) {
	switch {
	case n >= unix.NFT_REG_1 && n <= unix.NFT_REG_4:
		return int(n-unix.NFT_REG_1) * 16, true
	case n >= unix.NFT_REG32_00 && n <= unix.NFT_REG32_15:
		return int(n-unix.NFT_REG32_00) * 4, true
	}
	return 0, false
}

// load sets a register, padded as the kernel does.
func (x *rule) load(n uint32, s some) {
	at, ok := register(n)
	if !ok {
		return
	}
	for i := 0; i < len(s.bytes) || i%4 != 0; i++ {
		if at+i >= registerBytes {
			return
		}
		if i < len(s.bytes) {
			x.registers.bytes[at+i], x.registers.known[at+i] = s.bytes[i], s.known[i]
		} else {
			x.registers.put(at+i, 0)
		}
	}
}

// read returns n bytes of a register.
func (x *rule) read(number, n uint32) some {
	at, ok := register(number)
	if !ok || n > registerBytes {
		return unknown(int(min(n, registerBytes)))
	}
	return x.registers.part(uint32(at), n)
}

// neutral are the expressions that neither match nor end anything.
var neutral = map[string]bool{"counter": true, "log": true, "notrack": true, "dup": true, "last": true, "ct_timeout": true}

// final are those after which the packet has passed the chain.
var final = map[string]bool{"masq": true, "nat": true, "redir": true, "fwd": true, "queue": true, "tproxy": true, "synproxy": true}

// expression does what the kernel does for one expression.
func (x *rule) expression(e nft.Expr) {
	decode := func(to expr.Any) bool { return expr.Unmarshal(uint8(x.family), e.Data, to) == nil }
	var (
		payload expr.Payload
		meta    expr.Meta
		fib     expr.Fib
		ct      expr.Ct
		cmp     expr.Cmp
		between expr.Range
		bits    expr.Bitwise
		lookup  expr.Lookup
	)
	switch {
	case neutral[e.Name], e.Name == "objref" && number(e.Data) == counterObject:
	case final[e.Name]:
		x.ends(verdict{may: accepted})
	case e.Name == "reject":
		x.ends(verdict{may: dropped})
	case e.Name == "payload" && decode(&payload):
		x.payload(payload)
	case e.Name == "meta" && decode(&meta):
		if !meta.SourceRegister {
			x.meta(meta)
		}
	case e.Name == "fib" && decode(&fib):
		x.load(fib.Register, x.fib(fib))
	case e.Name == "ct" && decode(&ct):
		if !ct.SourceRegister {
			x.load(ct.Register, x.ct(ct.Key))
		}
	case e.Name == "cmp" && decode(&cmp):
		x.condition(compare(x.read(cmp.Register, uint32(len(cmp.Data))), cmp.Op, cmp.Data))
	case e.Name == "range" && decode(&between):
		s := x.read(between.Register, uint32(len(between.FromData)))
		in := compare(s, expr.CmpOpGte, between.FromData).and(compare(s, expr.CmpOpLte, between.ToData))
		if between.Op == expr.CmpOpNeq {
			in = in.not()
		}
		x.condition(in)
	case e.Name == "bitwise" && decode(&bits):
		x.load(bits.DestRegister, bitwise(x.read(bits.SourceRegister, bits.Len), bits))
	case e.Name == "lookup" && decode(&lookup):
		x.lookup(lookup)
	case e.Name == "immediate":
		x.immediate(e.Data)
	case e.Name == "match":
		x.condition(x.xtMatch(e.Data))
	case e.Name == "target":
		x.ends(verdict{may: x.xtTarget(e.Data)})
		x.done = x.verdict.may&onward == 0
	default: // a limit, a socket, a route: whatever it is, it may match or not
		x.load(number(e.Data), unknown(16))
		x.condition(maybe)
	}
}

// counterObject is NFT_OBJECT_COUNTER of linux/netfilter/nf_tables.h.
const counterObject = 1

// number is the first attribute of an expression: of fib, rt, hash and immediate the register that it writes, of objref
// the type of the object. No such number is larger than a byte.
func number(b []byte) (n uint32) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return 0
	}
	for d.Next() {
		if d.Type() == 1 && len(d.Bytes()) == 4 {
			n = uint32(d.Bytes()[3])
		}
	}
	return n
}

func (x *rule) payload(p expr.Payload) {
	if p.OperationType == expr.PayloadWrite {
		return
	}
	var s some
	switch p.Base {
	case expr.PayloadBaseNetworkHeader:
		s = x.packet.network().part(p.Offset, p.Len)
	case expr.PayloadBaseTransportHeader:
		s = x.packet.transport().part(p.Offset, p.Len)
	default:
		s = unknown(int(min(p.Len, registerBytes)))
	}
	x.load(p.DestRegister, s)
}

// ct is what conntrack says of the first packet of a connection that nobody translates.
func (x *rule) ct(key expr.CtKey) some {
	switch key {
	case expr.CtKeySTATE:
		return known(native(expr.CtStateBitNEW))
	case expr.CtKeySTATUS:
		return known(native(0))
	case expr.CtKeyDIRECTION:
		return known([]byte{0})
	}
	return unknown(16)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// bitwise is (s & mask) ^ xor. A bit that the mask takes away is known whatever it was.
func bitwise(s some, b expr.Bitwise) some {
	if len(b.Mask) != len(s.bytes) || len(b.Xor) != len(s.bytes) { // a shift
		return unknown(len(s.bytes))
	}
	out := unknown(len(s.bytes))
	for i := range s.bytes {
		out.bytes[i], out.known[i] = s.bytes[i]&b.Mask[i]^b.Xor[i], s.known[i]|^b.Mask[i]
	}
	return out
}

// compare reports how s compares with data, byte by byte as memcmp does.
func compare(s some, op expr.CmpOp, data []byte) tri {
	if len(s.bytes) < len(data) {
		return maybe
	}
	equal := yes
	for i := range data {
		switch {
		case (s.bytes[i]^data[i])&s.known[i] != 0:
			equal = no
		case s.known[i] != whole:
			equal = min(equal, maybe)
		}
	}
	switch op {
	case expr.CmpOpEq:
		return equal
	case expr.CmpOpNeq:
		return equal.not()
	}
	if !s.part(0, uint32(len(data))).isKnown() {
		return maybe
	}
	order := bytes.Compare(s.bytes[:len(data)], data)
	switch op {
	case expr.CmpOpLt:
		return is(order < 0)
	case expr.CmpOpLte:
		return is(order <= 0)
	case expr.CmpOpGt:
		return is(order > 0)
	case expr.CmpOpGte:
		return is(order >= 0)
	}
	return maybe
}

// lookup asks the kernel for the element of a set or map.
func (x *rule) lookup(l expr.Lookup) {
	at, ok := register(l.SourceRegister)
	if !ok {
		x.condition(maybe)
		return
	}
	key := x.registers.bytes[at:]
	n := len(key)
	for i := range key {
		if x.registers.known[at+i] != whole {
			n = i
			break
		}
	}
	e, err := x.reader.Lookup(x.table, l.SetName, key[:n/4*4])
	switch {
	case err != nil: // a part of the key is not known, or the set has gone
		x.condition(maybe)
		if l.IsDestRegSet {
			x.unknownData(l.DestRegister)
		}
	case !l.IsDestRegSet:
		x.condition(is(e.Found != l.Invert))
	case !e.Found:
		x.condition(no)
	case e.Verdict != nil:
		x.becomes(*e.Verdict)
	default:
		x.load(l.DestRegister, known(e.Data))
	}
}

// unknownData is that a map has an unknown value: it may even be a verdict.
func (x *rule) unknownData(n uint32) {
	if n == unix.NFT_REG_VERDICT {
		x.verdict = verdict{may: accepted | dropped | onward}
		return
	}
	x.load(n, unknown(16))
}

// immediate loads a value, or ends the rule with a verdict.
func (x *rule) immediate(b []byte) {
	value, v, err := nft.ParseImmediate(b)
	switch {
	case err != nil:
		x.condition(maybe)
	case v != nil:
		x.becomes(*v)
	default:
		x.load(number(b), known(value))
	}
}

// becomes is what a verdict does with the packet.
func (x *rule) becomes(v nft.Verdict) {
	switch v.Code {
	case nfDrop:
		x.ends(verdict{may: dropped})
	case unix.NFT_JUMP, unix.NFT_GOTO:
		x.ends(verdict{jump: v.Chain, goes: v.Code == unix.NFT_GOTO})
	case unix.NFT_RETURN:
		x.ends(verdict{may: returned})
	case unix.NFT_CONTINUE:
		x.ends(verdict{may: onward})
	case unix.NFT_BREAK:
		x.condition(no)
	default: // accept, queue, stolen
		x.ends(verdict{may: accepted})
	}
}

// nfDrop is NF_DROP of linux/netfilter.h.
const nfDrop = 0
