package guard

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/nft"
)

// isICMP is the condition that a packet of IPv4 is of ICMP, or is not.
func isICMP(not bool) cond { return headerByte(9, unix.IPPROTO_ICMP, not) }

// usualICMP are the conditions that in a packet with such a header ICMP follows, and that neither narrow nor noDiscovery has anything to say about it.
func usualICMP(f family) []cond {
	if f == ipv6 {
		return []cond{thenIs(f, unix.IPPROTO_ICMPV6), isDiscovery(true)}
	}
	return []cond{isICMP(false), {"icmp type != 3", []expr.Any{transport(0, 1), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{3}}}}}
}

// isICMPv6 is the condition that a packet is of ICMPv6, also behind extension headers.
func isICMPv6() cond {
	return cond{"l4proto == icmpv6", []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, nft.Equal([]byte{unix.IPPROTO_ICMPV6})}}
}

// isDiscovery is the condition that a message of ICMPv6 is of neighbour discovery (RFC 4861), or is not.
func isDiscovery(not bool) cond {
	op, sign := isOrNot(not)
	return cond{"icmpv6 type " + sign + " 133-137", []expr.Any{transport(0, 1), &expr.Range{Op: op, Register: reg1, FromData: []byte{133}, ToData: []byte{137}}}}
}

// tooBig is the condition that an ICMP message says that a packet is too big for a path (RFC 792: type 3, code 4), and mtuBelow that the MTU in it
// is less than that (RFC 1191 section 4).
func tooBig() cond {
	return cond{"icmp type 3 code 4", []expr.Any{transport(0, 2), nft.Equal([]byte{3, 4})}}
}

func mtuBelow(mtu int) cond {
	return cond{fmt.Sprintf("icmp mtu < %d", mtu), []expr.Any{transport(6, 2), &expr.Cmp{Op: expr.CmpOpLt, Register: reg1, Data: binary.BigEndian.AppendUint16(nil, uint16(mtu))}}}
}
