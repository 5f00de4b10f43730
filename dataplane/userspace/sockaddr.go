package userspace

import (
	"encoding/binary"
	"net/netip"
)

// sockaddr is an address and a port as Linux' system calls take them: struct sockaddr_in
// (16 bytes) or sockaddr_in6 (28 bytes), of which the port is in the same place.
//
//	 0       2     4             8                   24         28
//	+-------+-----+-------------+-------------------+----------+
//	|family |port | IPv4 address| zeros, to byte 16            |
//	|family |port | flow label  | IPv6 address      | scope ID |
//	+-------+-----+-------------+-------------------+----------+
//
// The family is in host byte order, the rest in network byte order.
type sockaddr struct {
	raw [28]byte
	len uint32
}

const (
	afINET  = 2  // AF_INET
	afINET6 = 10 // AF_INET6

	sockaddrLen4 = 16
	sockaddrLen6 = 28
)

func newSockaddr(a netip.AddrPort) (s sockaddr) {
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], afINET)
		copy(s.raw[4:], a.Addr().AsSlice())
		s.len = sockaddrLen4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], afINET6)
	copy(s.raw[8:], a.Addr().AsSlice())
	s.len = sockaddrLen6
	return s
}

// addr returns the address without its port, never IPv4-mapped.
func (s *sockaddr) addr() netip.Addr {
	if binary.NativeEndian.Uint16(s.raw[:]) == afINET {
		return netip.AddrFrom4([4]byte(s.raw[4:]))
	}
	return netip.AddrFrom16([16]byte(s.raw[8:])).Unmap()
}
