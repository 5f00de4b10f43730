// Package rtmsg writes and reads rtnetlink messages by hand, and sends many of them per system call: the
// netlink library does not support nexthop objects, and needs one system call and several allocations per
// object. Integers are in host order (netlink(7)).
package rtmsg

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

// Begin appends a netlink header and the family header that follows it. The
// length is set by Finish, the sequence number by the connection.
func Begin(b []byte, typ, flags uint16, family []byte) []byte {
	b = native.AppendUint32(b, 0)
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence, port
	return append(b, family...)
}

// Finish sets the length of the message that starts at b[start].
func Finish(b []byte, start int) []byte {
	native.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// Attr appends an attribute, padded.
func Attr(b []byte, typ uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

// AttrUint32 appends an attribute that is a number.
func AttrUint32(b []byte, typ uint16, v uint32) []byte {
	var d [4]byte
	native.PutUint32(d[:], v)
	return Attr(b, typ, d[:])
}

// AttrAddr appends an attribute that is an address.
func AttrAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		d := a.As4()
		return Attr(b, typ, d[:])
	}
	d := a.As16()
	return Attr(b, typ, d[:])
}

// Attrs yields the attributes (type without flag bits, value) and stops at the
// first that does not fit.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n := int(native.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			if !yield(native.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Split splits a message into its family header of n bytes and its attributes;
// both are nil if it is too short.
func Split(b []byte, n int) (header, rest []byte) {
	if len(b) < n {
		return nil, nil
	}
	return b[:n], b[n:]
}

// Uint32 returns the number that an attribute is; 0 if it is too short.
func Uint32(d []byte) uint32 {
	if len(d) < 4 {
		return 0
	}
	return native.Uint32(d)
}

// Family returns AF_INET or AF_INET6.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
