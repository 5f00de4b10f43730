package guard

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// family is one of the address families, of an outer or of an inner header.
type family = nft.Family

const (
	ipv4 = nft.IPv4
	ipv6 = nft.IPv6
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// digit names a family in the name of a set.
func digit(f family) string {
	if f == ipv6 {
		return "6"
	}
	return "4"
}

func bitsOf(f family) int {
	if f == ipv6 {
		return 8 * net.IPv6len
	}
	return 8 * net.IPv4len
}

// reg1 is the register into which a condition loads what it compares, and words the first of the
// registers of 32 bits that are the same memory.
const (
	reg1  = unix.NFT_REG_1
	words = unix.NFT_REG32_00
)

// field is an address in a packet.
type field struct {
	base   expr.PayloadBase
	offset uint32
	family family
	text   string

	secmark bool // not in the packet: see origin
	there   bool // the packet is known to be long enough for it
}

// What is where in a datagram of VXLAN, in bytes from the UDP header (RFC 7348 section 5).
const (
	atFlags     = 8
	atVNI       = 12
	atEtherType = 28
	atInner     = 30
)

func outerSource(f family) field {
	return field{base: expr.PayloadBaseNetworkHeader, offset: f.Source(), family: f, text: f.String() + " saddr"}
}
func outerDestination(f family) field {
	return field{base: expr.PayloadBaseNetworkHeader, offset: f.Destination(), family: f, text: f.String() + " daddr"}
}

func innerSource(f family) field      { return inner(f, f.Source()) }
func innerDestination(f family) field { return inner(f, f.Destination()) }

// quotedDestination is where the packet was going that an ICMP message quotes, behind eight bytes of its own.
func quotedDestination() field {
	return field{base: expr.PayloadBaseTransportHeader, offset: 8 + ipv4.Destination(), family: ipv4, text: "quoted ip daddr"}
}

func inner(f family, offset uint32) field {
	at := atInner + offset
	return field{base: expr.PayloadBaseTransportHeader, offset: at, family: f, text: fmt.Sprintf("@th,%d,%d", 8*at, bitsOf(f))}
}

// load loads the first bits of the field into registers from r on.
func (d field) load(r uint32, bits int) []expr.Any {
	if d.secmark {
		return []expr.Any{&expr.Meta{Key: unix.NFT_META_SECMARK, Register: r}}
	}
	n := uint32(bitsOf(d.family) / 8)
	list := []expr.Any{&expr.Payload{DestRegister: r, Base: d.base, Offset: d.offset, Len: n}}
	if bits < bitsOf(d.family) {
		list = append(list, &expr.Bitwise{SourceRegister: r, DestRegister: r, Len: n, Mask: net.CIDRMask(bits, int(8*n)), Xor: make([]byte, n)})
	}
	return list
}

// inParts reports whether the prefix in a key of pairs is in parts of 16 bits, each in a register of 32. In a datagram the inner addresses are at an
// odd multiple of two bytes, and to read all of one there costs the kernel as much as ten conditions.
func inParts(f family, bits int) bool { return f == ipv4 && bits < bitsOf(f) }

const partBits = 16

// loadParts loads the first bits of an address of IPv4 in parts into registers from r on.
func (d field) loadParts(r uint32, bits int) (list []expr.Any) {
	for at := 0; at == 0 || at < bits; at += partBits {
		part := min(bits-at, partBits)
		n := uint32(max(1, (part+7)/8))
		list = append(list, &expr.Payload{DestRegister: r, Base: d.base, Offset: d.offset + uint32(at/8), Len: n})
		if part%8 != 0 || part == 0 { // of all of the register, which costs less than of its part
			list = append(list, &expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: net.CIDRMask(part, 32), Xor: make([]byte, 4)})
		}
		r++
	}
	return list
}

// prefixKey is what a key of pairs has of a prefix.
func prefixKey(p netip.Prefix) string {
	b := p.Addr().AsSlice()
	if !inParts(familyOf(p.Addr()), p.Bits()) {
		return string(b)
	}
	key := string(b[:2]) + "\x00\x00"
	if p.Bits() > partBits {
		key += string(b[2:]) + "\x00\x00"
	}
	return key
}

// digits name the parts of a prefix in the name of a set of pairs.
func digits(f family, bits int) string {
	if inParts(f, bits) && bits > partBits {
		return digit(f) + digit(f)
	}
	return digit(f)
}

func masked(d field, bits int) string {
	if bits == bitsOf(d.family) {
		return d.text
	}
	return fmt.Sprintf("%s/%d", d.text, bits)
}

// within is the condition that the field is inside a prefix, or outside if not is true.
func (d field) within(p netip.Prefix, not bool) cond {
	if not {
		return cond{fmt.Sprintf("%s != %s", d.text, p), append(d.load(reg1, p.Bits()), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: p.Addr().AsSlice()})}
	}
	return cond{fmt.Sprintf("%s == %s", d.text, p), d.equal(p)}
}

// equal compares the field with a prefix, in pieces of 4, 2 or 1 bytes at multiples of as many: others cost the kernel ten times as much. The
// packet has to have all of the field.
func (d field) equal(p netip.Prefix) (list []expr.Any) {
	want, all := p.Addr().AsSlice(), bitsOf(d.family)
	for at, size := 0, 0; 8*at < p.Bits(); at += size {
		for size = 4; (int(d.offset)+at)%size != 0 || 8*(at+size) > all || size == 2 && p.Bits()-8*at < 16; {
			size /= 2
		}
		list = append(list, &expr.Payload{DestRegister: reg1, Base: d.base, Offset: d.offset + uint32(at), Len: uint32(size)})
		if mask := net.CIDRMask(p.Bits(), all)[at : at+size]; 8*(at+size) > p.Bits() {
			list = append(list, &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(size), Mask: mask, Xor: make([]byte, size)})
		}
		list = append(list, nft.Equal(want[at:at+size]))
	}
	if d.base == expr.PayloadBaseTransportHeader && p.Bits() < all && !d.there {
		list = append(list, &expr.Payload{DestRegister: reg1, Base: d.base, Offset: d.offset + uint32(all/8) - 1, Len: 1})
	}
	return list
}

// isThere is the condition that the packet is long enough for the field.
func (d field) isThere() cond {
	last := d.offset + uint32(bitsOf(d.family)/8) - 1
	return cond{d.text + " is there", []expr.Any{&expr.Payload{DestRegister: reg1, Base: d.base, Offset: last, Len: 1}}}
}

// setSource is no condition: it replaces the packet's source. The checksums are wrong then.
func setSource(a netip.Addr) cond {
	f, at := familyOf(a), uint32(12)
	if f == ipv6 {
		at = 8
	}
	b := a.AsSlice()
	return cond{fmt.Sprintf("%s saddr = %s", f, a), []expr.Any{&expr.Immediate{Register: reg1, Data: b},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: uint32(len(b))}}}
}
