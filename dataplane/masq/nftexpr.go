package masq

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// register is NFT_REG_1, into which every condition loads what it compares.
const register = unix.NFT_REG_1

// expressions writes a rule for nftables. Counters are for rules in the tables of
// iptables-nft, which has one in each.
func expressions(f family, r rule, counter bool) ([][]byte, error) {
	var list []expr.Any
	if r.tunnel != 0 {
		list = append(list, protocolUDP()...)
		list = append(list,
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Register: register, Data: binary.BigEndian.AppendUint16(nil, r.tunnel)},
			&expr.Fib{Register: register, FlagSADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Register: register, Data: native(unix.RTN_LOCAL)})
	}
	if r.marked {
		list = append(list, &expr.Meta{Key: expr.MetaKeyMARK, Register: register}, mask(native(mark)),
			&expr.Cmp{Register: register, Data: native(mark)})
	}
	if r.udp {
		list = append(list, protocolUDP()...)
	}
	list = append(list, address(f, r.src, f.source())...)
	list = append(list, address(f, r.dst, f.destination())...)
	if counter {
		list = append(list, &expr.Counter{})
	}
	var encoded [][]byte
	for _, e := range append(list, outcome(r)...) {
		b, err := expr.Marshal(uint8(f), e)
		if err != nil {
			return nil, fmt.Errorf("encode rule: %w", err)
		}
		encoded = append(encoded, b)
	}
	if r.do == masquerade {
		encoded = append(encoded, masqExpression(r))
	}
	return encoded, nil
}

// source is the offset of the source address in the header of the family.
func (f family) source() uint32 {
	if f == ipv6 {
		return 8 // RFC 8200 section 3
	}
	return 12 // RFC 791 section 3.1
}

func (f family) destination() uint32 { return f.source() + uint32(f.addrLen()) }

func (f family) addrLen() int {
	if f == ipv6 {
		return net.IPv6len
	}
	return net.IPv4len
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func protocolUDP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, &expr.Cmp{Register: register, Data: []byte{unix.IPPROTO_UDP}}}
}

func mask(m []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(m)), Mask: m, Xor: make([]byte, len(m))}
}

func address(f family, m match, offset uint32) []expr.Any {
	if !m.prefix.IsValid() {
		return nil
	}
	op := expr.CmpOpEq
	if m.not {
		op = expr.CmpOpNeq
	}
	n := f.addrLen()
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)},
		mask(net.CIDRMask(m.prefix.Bits(), 8*n)),
		&expr.Cmp{Op: op, Register: register, Data: m.prefix.Addr().AsSlice()},
	}
}

// outcome is the verdict, or the ports that masqueradeExpression refers to.
func outcome(r rule) []expr.Any {
	switch {
	case r.do == accept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	case r.do == leave:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case r.ports != portRange{}:
		return []expr.Any{
			&expr.Immediate{Register: unix.NFT_REG_1, Data: binary.BigEndian.AppendUint16(nil, r.ports.low)},
			&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, r.ports.high)},
		}
	}
	return nil
}

func masqExpression(r rule) []byte {
	return attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, "masq")
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			flags := uint32(0)
			if r.random {
				flags |= expr.NF_NAT_RANGE_PROTO_RANDOM_FULLY
			}
			if (r.ports != portRange{}) {
				flags |= expr.NF_NAT_RANGE_PROTO_SPECIFIED // without it the kernel ignores the ports
			}
			if flags != 0 {
				e.Uint32(unix.NFTA_MASQ_FLAGS, flags)
			}
			if (r.ports != portRange{}) {
				e.Uint32(unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFT_REG_1)
				e.Uint32(unix.NFTA_MASQ_REG_PROTO_MAX, unix.NFT_REG_2)
			}
			return nil
		})
	})
}

// jump is a rule that jumps to a chain, as iptables-nft writes it.
func jump(f family, chain string) ([][]byte, error) {
	var encoded [][]byte
	for _, e := range []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} {
		b, err := expr.Marshal(uint8(f), e)
		if err != nil {
			return nil, fmt.Errorf("encode jump to %s: %w", chain, err)
		}
		encoded = append(encoded, b)
	}
	return encoded, nil
}

// prefixes returns the addresses and prefixes that a rule compares with.
func (r nftRule) prefixes(f family) []netip.Prefix {
	var found []netip.Prefix
	bits, loaded := 0, false
	for _, x := range r.exprs {
		switch x.name {
		case "payload":
			var p expr.Payload
			err := expr.Unmarshal(uint8(f), x.data, &p)
			loaded = err == nil && p.Base == expr.PayloadBaseNetworkHeader && (p.Offset == f.source() || p.Offset == f.destination())
			bits = 8 * int(p.Len)
		case "bitwise":
			var b expr.Bitwise
			if expr.Unmarshal(uint8(f), x.data, &b) == nil {
				bits, _ = net.IPMask(b.Mask).Size()
			}
		case "cmp":
			var c expr.Cmp
			if err := expr.Unmarshal(uint8(f), x.data, &c); err != nil || !loaded {
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

// target returns the chain that a rule jumps or goes to, or "".
func (r nftRule) target(f family) string {
	for _, x := range r.exprs {
		if x.name != "immediate" {
			continue
		}
		var v expr.Verdict
		if expr.Unmarshal(uint8(f), x.data, &v) == nil && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) {
			return v.Chain
		}
	}
	return ""
}
