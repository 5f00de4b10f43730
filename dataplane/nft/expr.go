package nft

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

// Encode encodes expressions for [NewRule].
func Encode(f Family, list ...expr.Any) ([][]byte, error) {
	encoded := make([][]byte, 0, len(list))
	for _, x := range list {
		b, err := encodeOne(f, x)
		if err != nil {
			return nil, fmt.Errorf("encode expression: %w", err)
		}
		encoded = append(encoded, b)
	}
	return encoded, nil
}

func encodeOne(f Family, x expr.Any) ([]byte, error) {
	ct, ok := x.(*expr.Ct)
	if !ok || ct.Key != expr.CtKeySRC {
		return expr.Marshal(uint8(f), x)
	}
	// The library makes four bytes of the direction, about which the kernel complains in its log.
	return attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, "ct")
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			e.Uint32(unix.NFTA_CT_KEY, uint32(ct.Key))
			e.Uint32(unix.NFTA_CT_DREG, ct.Register)
			e.Uint8(unix.NFTA_CT_DIRECTION, uint8(ct.Direction))
			return nil
		})
	}), nil
}

// Source is the offset of the source address in the header of the family, in bytes.
func (f Family) Source() uint32 {
	if f == IPv6 {
		return 8 // RFC 8200 section 3
	}
	return 12 // RFC 791 section 3.1
}

// Destination is the offset of the destination address in the header of the family, in bytes.
func (f Family) Destination() uint32 { return f.Source() + uint32(f.addrLen()) }

func (f Family) addrLen() int {
	if f == IPv6 {
		return net.IPv6len
	}
	return net.IPv4len
}

// Equal is the condition that the register of the expression before it holds data.
func Equal(data []byte) expr.Any { return &expr.Cmp{Register: register, Data: data} }

// UDP is the condition that a packet is UDP.
func UDP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, Equal([]byte{unix.IPPROTO_UDP})}
}

// DestinationPort is the condition that a packet of UDP or TCP goes to a port.
func DestinationPort(port uint16) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		Equal(binary.BigEndian.AppendUint16(nil, port))}
}

// udpChecksum is the offset of the checksum in a UDP header (RFC 768).
const udpChecksum = 6

// WithoutChecksum is the condition that a UDP datagram has no checksum.
func WithoutChecksum() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: udpChecksum, Len: 2}, Equal([]byte{0, 0})}
}

// SetDestinationPort makes a UDP datagram go to another port, and corrects its checksum if it has one.
func SetDestinationPort(port uint16, checksum bool) []expr.Any {
	write := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	if checksum {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, udpChecksum
	}
	return []expr.Any{&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, port)}, write}
}

// FromLocal is the condition that the source is an address of this host.
func FromLocal() []expr.Any {
	return []expr.Any{&expr.Fib{Register: register, FlagSADDR: true, ResultADDRTYPE: true}, Equal(native(unix.RTN_LOCAL))}
}

// Marked is the condition that all bits of mark are set in the packet's mark.
func Marked(mark uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, mask(native(mark)), Equal(native(mark))}
}

// Address is the condition that the address at an offset of the network header, such as
// [Family.Source], is inside the prefix, or outside if not is true.
func Address(f Family, offset uint32, p netip.Prefix, not bool) []expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	n := f.addrLen()
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)},
		mask(net.CIDRMask(p.Bits(), 8*n)),
		&expr.Cmp{Op: op, Register: register, Data: p.Addr().AsSlice()},
	}
}

// ComesBy is the condition that a packet has come by the interface with that name.
func ComesBy(name string) []expr.Any { return byInterface(expr.MetaKeyIIFNAME, name) }

// LeavesBy is the condition that a packet leaves by the interface with that name.
func LeavesBy(name string) []expr.Any { return byInterface(expr.MetaKeyOIFNAME, name) }

func byInterface(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: register}, Equal(padded)}
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func mask(m []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(m)), Mask: m, Xor: make([]byte, len(m))}
}

// Masquerade returns the encoded expressions that masquerade, with source ports from low to
// high, or any if both are 0. random chooses them fully at random.
func Masquerade(f Family, low, high uint16, random bool) ([][]byte, error) {
	var ports []expr.Any
	if high != 0 {
		ports = []expr.Any{
			&expr.Immediate{Register: unix.NFT_REG_1, Data: binary.BigEndian.AppendUint16(nil, low)},
			&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, high)},
		}
	}
	encoded, err := Encode(f, ports...)
	if err != nil {
		return nil, err
	}
	return append(encoded, masquerade(high != 0, random)), nil
}

func masquerade(ports, random bool) []byte {
	flags := uint32(0)
	if random {
		flags |= expr.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	}
	if ports {
		flags |= expr.NF_NAT_RANGE_PROTO_SPECIFIED // without it the kernel ignores the ports
	}
	return attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_EXPR_NAME, "masq")
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			if flags != 0 {
				e.Uint32(unix.NFTA_MASQ_FLAGS, flags)
			}
			if ports {
				e.Uint32(unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFT_REG_1)
				e.Uint32(unix.NFTA_MASQ_REG_PROTO_MAX, unix.NFT_REG_2)
			}
			return nil
		})
	})
}

// Jump returns the encoded expressions of a rule that jumps to a chain whatever the packet, as
// iptables-nft writes it.
func Jump(f Family, chain string) ([][]byte, error) {
	return Encode(f, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}
