package udp

import (
	"encoding/binary"
	"net/netip"
)

// Sockaddr is an address and a port as Linux' system calls take them: struct sockaddr_in
// (16 bytes) or sockaddr_in6 (28 bytes), of which the port is in the same place.
//
//	 0       2     4             8                   24         28
//	+-------+-----+-------------+-------------------+----------+
//	|family |port | IPv4 address| zeros, to byte 16            |
//	|family |port | flow label  | IPv6 address      | scope ID |
//	+-------+-----+-------------+-------------------+----------+
//
// The family is in host byte order, the rest in network byte order.
type Sockaddr struct {
	Raw [28]byte
	Len uint32 // of Raw, in bytes
}

const (
	afINET  = 2  // AF_INET
	afINET6 = 10 // AF_INET6

	sockaddrLen4 = 16
	sockaddrLen6 = 28
)

// NewSockaddr returns a for system calls.
func NewSockaddr(a netip.AddrPort) (s Sockaddr) {
	binary.BigEndian.PutUint16(s.Raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.Raw[:], afINET)
		copy(s.Raw[4:], a.Addr().AsSlice())
		s.Len = sockaddrLen4
		return s
	}
	binary.NativeEndian.PutUint16(s.Raw[:], afINET6)
	copy(s.Raw[8:], a.Addr().AsSlice())
	s.Len = sockaddrLen6
	return s
}

// Addr returns the address without its port, never IPv4-mapped.
func (s *Sockaddr) Addr() netip.Addr {
	if binary.NativeEndian.Uint16(s.Raw[:]) == afINET {
		return netip.AddrFrom4([4]byte(s.Raw[4:]))
	}
	return netip.AddrFrom16([16]byte(s.Raw[8:])).Unmap()
}
