package guard

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// cond is one condition of a rule, in the words of the nft command, and as the kernel takes it. A packet that is too short
// for it does not meet it.
type cond struct {
	text  string
	exprs []expr.Any
}

// isOrNot returns the operator of a condition that holds if something is so, or if it is not.
func isOrNot(not bool) (op expr.CmpOp, sign string) {
	if not {
		return expr.CmpOpNeq, "!="
	}
	return expr.CmpOpEq, "=="
}

// in is the condition that the first bits of the fields together are in a set, or are not. With two fields that is a set of pairs.
func in(set string, not bool, bits int, fields ...field) cond {
	c, r := cond{}, uint32(words)
	for i, d := range fields {
		length := bitsOf(d.family)
		if i == len(fields)-1 {
			length = bits
		}
		if i > 0 && inParts(d.family, length) {
			c.exprs = append(c.exprs, d.loadParts(r, length)...)
		} else {
			c.exprs = append(c.exprs, d.load(r, length)...)
		}
		r += uint32(bitsOf(d.family) / 32)
		if i > 0 {
			c.text += " . "
		}
		c.text += masked(d, length)
	}
	sign := " @"
	if not {
		sign = " != @"
	}
	c.text += sign + set
	c.exprs = append(c.exprs, &expr.Lookup{SourceRegister: words, SetName: set, Invert: not})
	return c
}

// of is the condition that the packet is of that family.
func of(f family) cond {
	return cond{"nfproto " + f.String(), []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, nft.Equal([]byte{byte(f)})}}
}

// usualHeader is the condition that the packet is of that family, and that the first byte of its header is what it usually is: no options in IPv4, no
// traffic class of 16 and more in IPv6. It is for packets that have come: before prerouting the kernel drops those with another version. It costs
// less than of.
func usualHeader(f family) cond {
	if f == ipv6 {
		return header(0, 0x60)
	}
	return header(0, 0x45)
}

// thenIs is the condition that in a packet with such a header that protocol follows.
func thenIs(f family, protocol byte) cond {
	if f == ipv6 {
		return header(6, protocol)
	}
	return header(9, protocol)
}

// header is the condition that the IP header has that byte there.
func header(offset uint32, is byte) cond { return headerByte(offset, is, false) }

func headerByte(offset uint32, is byte, not bool) cond {
	op, sign := isOrNot(not)
	return cond{fmt.Sprintf("@nh,%d,8 %s %#02x", 8*offset, sign, is),
		[]expr.Any{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 1}, &expr.Cmp{Op: op, Register: reg1, Data: []byte{is}}}}
}

// innerIs is the condition that the inner frame has a packet of that family.
func innerIs(f family) cond {
	kind := uint16(unix.ETH_P_IP)
	if f == ipv6 {
		kind = unix.ETH_P_IPV6
	}
	return cond{fmt.Sprintf("@th,%d,16 == %#04x", 8*atEtherType, kind),
		[]expr.Any{transport(atEtherType, 2), nft.Equal(binary.BigEndian.AppendUint16(nil, kind))}}
}

func transport(offset, n uint32) expr.Any {
	return &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: n}
}

// vniIs is the condition that the VXLAN header has that VNI, or has not.
func vniIs(vni uint32, not bool) cond {
	op, sign := isOrNot(not)
	mask := []byte{0xff, 0xff, 0xff, 0} // the last byte is reserved
	return cond{fmt.Sprintf("vxlan vni %s %d", sign, vni), []expr.Any{transport(atVNI, 4),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg1, Data: binary.BigEndian.AppendUint32(nil, vni<<8)}}}
}

// hasVNI is the condition that the packet is long enough for a VNI.
func hasVNI() cond { return cond{"vxlan vni is there", []expr.Any{transport(atVNI, 4)}} }

// plainVNI is the condition that the second word of the VXLAN header has that VNI and nothing else, or that it has something else.
func plainVNI(vni uint32, not bool) cond {
	op, sign := isOrNot(not)
	return cond{fmt.Sprintf("vxlan vni . reserved %s %d . 0", sign, vni), []expr.Any{transport(atVNI, 4), &expr.Cmp{Op: op, Register: reg1, Data: binary.BigEndian.AppendUint32(nil, vni<<8)}}}
}

// hasEtherType is the condition that the packet is long enough to have the type of the inner frame.
func hasEtherType() cond {
	return cond{fmt.Sprintf("@th,%d,16 is there", 8*atEtherType), []expr.Any{transport(atEtherType, 2)}}
}

// isSingle are the conditions that a datagram over IPv4 has from 74 to 119 bytes, and that neither it nor the packet in it is a fragment. Then no packet with
// four bytes behind its IP header is hidden behind the one in it: of the datagrams of a superpacket each but the last, which may be shorter, has the
// same length, and behind its UDP header there are 46 bytes at least before the fourth: VXLAN, Ethernet, IPv4 and those. Nor can another whole IP header be
// in that packet, which has 69 bytes at most, behind its own headers and those of the overlay. A length of 0 is that of some longer packets.
func isSingle() []cond {
	const first, least, most = 0x45, 74, 119 // neither options nor a type of service
	return []cond{
		{fmt.Sprintf("@nh,0,32 == %#02x00, %d-%d", first, least, most), []expr.Any{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Len: 4},
			&expr.Range{Op: expr.CmpOpEq, Register: reg1, FromData: []byte{first, 0, 0, least}, ToData: []byte{first, 0, 0, most}}}},
		{"ip frag-off == 0", []expr.Any{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: atFragment, Len: 2}, nft.Equal([]byte{0, 0})}},
		fragmented(expr.CmpOpEq, fmt.Sprintf("@th,%d,16 & 0x3fff == 0", 8*(atInner+atFragment)), expr.PayloadBaseTransportHeader, atInner+atFragment, moreOrOffset),
	}
}

// hasPorts is the condition that the packet has four bytes behind its IP header.
func hasPorts() cond { return cond{"@th,16,16 is there", []expr.Any{transport(2, 2)}} }

// passesThrough is the condition that this host would forward the packet, or with not that it would take it.
func passesThrough(not bool) cond {
	op, sign := isOrNot(not)
	return cond{"fib daddr type " + sign + " unicast", []expr.Any{&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true}, &expr.Cmp{Op: op, Register: reg1, Data: native(unix.RTN_UNICAST)}}}
}

// ownFlags is the condition that the first word of the VXLAN header says that there is a VNI and, without a group policy, nothing else; or that it does not.
func (c *Config) ownFlags(not bool) cond {
	op, sign := isOrNot(not)
	flag := []byte{0x08, 0, 0, 0}
	is := &expr.Cmp{Op: op, Register: reg1, Data: flag}
	if c.GBP { // draft-smith-vxlan-group-policy: it has bits and an identifier there
		return cond{"vxlan flags & 0x08000000 " + sign + " 0x08000000", []expr.Any{transport(atFlags, 4), &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: flag, Xor: make([]byte, 4)}, is}}
	}
	return cond{"vxlan flags " + sign + " 0x08000000", []expr.Any{transport(atFlags, 4), is}}
}

// flagsAt is what ownFlags is, for a VXLAN header at that offset from the IP header, and vniAt is what vniIs is.
func (c *Config) flagsAt(at uint32) cond {
	if c.GBP {
		return wordAt(at, []byte{0x08, 0, 0, 0}, 0x08000000)
	}
	return wordAt(at, nil, 0x08000000)
}

func vniAt(at, vni uint32) cond { return wordAt(at+4, []byte{0xff, 0xff, 0xff, 0}, vni<<8) }

// wordAt is the condition that the four bytes at that offset from the IP header, or those bits of them, have that value.
func wordAt(at uint32, mask []byte, is uint32) cond {
	c := cond{fmt.Sprintf("@nh,%d,32", 8*at), []expr.Any{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 4}}}
	if mask != nil {
		c.text += fmt.Sprintf(" & 0x%x", mask)
		c.exprs = append(c.exprs, &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: mask, Xor: make([]byte, 4)})
	}
	return cond{c.text + fmt.Sprintf(" == 0x%08x", is), append(c.exprs, nft.Equal(binary.BigEndian.AppendUint32(nil, is)))}
}

func isUDP(not bool) cond {
	op, sign := isOrNot(not)
	return cond{"l4proto " + sign + " udp", []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, &expr.Cmp{Op: op, Register: reg1, Data: []byte{unix.IPPROTO_UDP}}}}
}

func toPort(port uint16, not bool) cond {
	op, sign := isOrNot(not)
	return cond{fmt.Sprintf("udp dport %s %d", sign, port), []expr.Any{transport(2, 2), &expr.Cmp{Op: op, Register: reg1, Data: binary.BigEndian.AppendUint16(nil, port)}}}
}

func fromPort(port uint16) cond {
	return cond{fmt.Sprintf("udp sport == %d", port), []expr.Any{transport(0, 2), nft.Equal(binary.BigEndian.AppendUint16(nil, port))}}
}

// comesBy and leavesBy are about the name of the interface: that stays when a device is made again.
func comesBy(name string, not bool) cond { return byName("iifname", expr.MetaKeyIIFNAME, name, not) }
func leavesBy(name string) cond          { return byName("oifname", expr.MetaKeyOIFNAME, name, false) }

func byName(word string, key expr.MetaKey, name string, not bool) cond {
	op, sign := isOrNot(not)
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return cond{fmt.Sprintf("%s %s %q", word, sign, name), []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: op, Register: reg1, Data: padded}}}
}

// comesByIndex and leavesByIndex cost less.
func comesByIndex(index int, not bool) cond { return byIndex("iif", expr.MetaKeyIIF, index, not) }
func leavesByIndex(index int) cond          { return byIndex("oif", expr.MetaKeyOIF, index, false) }

func byIndex(word string, key expr.MetaKey, index int, not bool) cond {
	op, sign := isOrNot(not)
	return cond{fmt.Sprintf("%s %s %d", word, sign, index), []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: op, Register: reg1, Data: native(uint32(index))}}}
}

// metaIIFKind is NFT_META_IIFKIND of linux/netfilter/nf_tables.h (Linux 5.6), and behind it is that of the outgoing interface.
const metaIIFKind = 26

// comesByKind is the condition that the interface is a device of that kind, such as "veth".
func comesByKind(kind string) cond { return byName("iifkind", metaIIFKind, kind, false) }

// comesByOtherKind is the condition that the interface is a device of some kind, and not of that one. A NIC has none.
func comesByOtherKind(kind string) cond { return byName("iifkind", metaIIFKind, kind, true) }

func leavesByKind(kind string) cond { return byName("oifkind", metaIIFKind+1, kind, false) }

// wayBack is the condition that this host would send to the packet's source by the interface that the packet came by, or would not.
func wayBack(not bool) cond {
	op, text := expr.CmpOpNeq, "fib saddr . iif oif exists"
	if not {
		op, text = expr.CmpOpEq, "fib saddr . iif oif missing"
	}
	return cond{text, []expr.Any{&expr.Fib{Register: reg1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, &expr.Cmp{Op: op, Register: reg1, Data: make([]byte, 4)}}}
}

// fromHere is the condition that the source is an address of this host.
func fromHere() cond {
	return cond{"fib saddr type local", []expr.Any{&expr.Fib{Register: reg1, FlagSADDR: true, ResultADDRTYPE: true}, nft.Equal(native(unix.RTN_LOCAL))}}
}

// notFromHere is the condition that the source is no address of this host, nor an anycast address of it: that is the first one of each subnet of IPv6.
func notFromHere() cond {
	return cond{"fib saddr type != local, anycast", []expr.Any{&expr.Fib{Register: reg1, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(unix.RTN_LOCAL)}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(unix.RTN_ANYCAST)}}}
}

// marked is the condition that one of the bits of mark is in the packet's mark, or none is.
func marked(mark uint32, not bool) cond {
	op, sign := isOrNot(!not)
	return cond{fmt.Sprintf("mark & %#x %s 0", mark, sign), []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: native(mark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg1, Data: make([]byte, 4)}}}
}

// setMark is no condition: it adds the bits to the packet's mark.
func setMark(mark uint32) cond {
	return cond{fmt.Sprintf("mark |= %#x", mark), []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: native(^mark), Xor: native(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true}}}
}

// clearMark is no condition: it takes the bits from the packet's mark.
func clearMark(mark uint32) cond {
	return cond{fmt.Sprintf("mark &= ^%#x", mark), []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: native(^mark), Xor: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true}}}
}

// fromSocket is the condition that a process of this host has sent the packet: what the kernel encapsulates for pods has no
// socket any more.
func fromSocket() cond {
	return cond{"skuid >= 0", []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: reg1}, &expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: make([]byte, 4)}}}
}

// fromUser is the condition that a process of another user than root has sent the packet.
func fromUser() cond {
	return cond{"skuid != 0", []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: reg1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)}}}
}

// hasExtension is the condition that a packet of IPv6 has that extension header, or has not.
func hasExtension(header uint8, name string, not bool) cond {
	is, word := byte(1), "exists"
	if not {
		is, word = 0, "missing"
	}
	return cond{"exthdr " + name + " " + word, []expr.Any{&expr.Exthdr{DestRegister: reg1, Type: header, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT}, nft.Equal([]byte{is})}}
}

// hasRoute is the condition that the packet may have a source route: over IPv4 it has options, and over IPv6 a routing header. With not it has none.
func hasRoute(f family, not bool) cond {
	if f == ipv4 {
		return headerByte(0, 0x45, !not)
	}
	return hasExtension(unix.IPPROTO_ROUTING, "rt", not)
}

// isFragment is the condition that the packet is a fragment: of IPv4 it has an offset, or more to come, and of IPv6 the header
// of fragments, which what was put together has not.
func isFragment(f family) cond {
	if f == ipv6 {
		return hasExtension(unix.IPPROTO_FRAGMENT, "frag", false)
	}
	return fragmented(expr.CmpOpNeq, "ip frag-off & 0x3fff != 0", expr.PayloadBaseNetworkHeader, atFragment, moreOrOffset)
}

// isLater are the conditions that the packet is a fragment, but not the first one. Such a fragment has no ports. Before Linux 7.1 nftables reads ports in it
// all the same: it takes data of the fragment for them, or over IPv6 a part of the IP header.
func isLater(f family) []cond {
	if f == ipv6 { // RFC 8200, section 4.5
		return []cond{of(ipv6), {"exthdr frag offset & 0xfff8 != 0", append([]expr.Any{&expr.Exthdr{DestRegister: reg1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2}}, flagBits(expr.CmpOpNeq, 0xfff8)...)}}
	}
	return []cond{of(ipv4), hasOffset(false)}
}

// hasOffset is the condition that the IPv4 header has the offset of a later fragment, or has not.
func hasOffset(not bool) cond {
	op, sign := isOrNot(!not) // compared with no offset
	return fragmented(op, "ip frag-off & 0x1fff "+sign+" 0", expr.PayloadBaseNetworkHeader, atFragment, 0x1fff)
}

// atFragment is where an IPv4 header has flags and offset of a fragment.
const atFragment = 6

// moreOrOffset are the bits that only fragments have: more to come, and the offset.
const moreOrOffset = 0x3fff

func fragmented(op expr.CmpOp, text string, base expr.PayloadBase, at uint32, mask uint16) cond {
	return cond{text, append([]expr.Any{&expr.Payload{DestRegister: reg1, Base: base, Offset: at, Len: 2}}, flagBits(op, mask)...)}
}

// flagBits compares those bits of the two bytes that were read with zero.
func flagBits(op expr.CmpOp, mask uint16) []expr.Any {
	return []expr.Any{&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 2, Mask: binary.BigEndian.AppendUint16(nil, mask), Xor: []byte{0, 0}},
		&expr.Cmp{Op: op, Register: reg1, Data: []byte{0, 0}}}
}

// limited is the condition that there have been no more than so many packets in a second.
func limited(perSecond uint32) cond {
	return cond{fmt.Sprintf("limit %d/s", perSecond), []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(perSecond), Unit: expr.LimitTimeSecond, Burst: perSecond}}}
}

// tracked needs connection tracking, and so has the kernel put fragments together before any other hook sees them.
func tracked() cond {
	return cond{"ct state untracked", []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, nft.Equal(native(untracked))}}
}

// startedElsewhere is the condition that the packet is of a connection whose first packet had another source than that. What is not tracked does not meet it.
func startedElsewhere(than netip.Addr) cond {
	return cond{fmt.Sprintf("ct original saddr != %s", than), []expr.Any{&expr.Ct{Key: expr.CtKeySRC, Register: reg1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: than.AsSlice()}}}
}

// untracked is IP_CT_UNTRACKED as a bit (linux/netfilter/nf_conntrack_common.h).
const untracked = 1 << 6

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
