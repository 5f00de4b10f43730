package encap

import (
	"errors"
	"fmt"
)

// MACLen is the length of an Ethernet (EUI-48) address in bytes.
const MACLen = 6

// MAC is an Ethernet (EUI-48) address. It is an array, so that it can be
// compared, be a map key and live in a header template without an allocation.
type MAC [MACLen]byte

var errMAC = errors.New("want six hexadecimal bytes joined by colons, such as 0e:2a:00:00:00:01")

// ParseMAC reads the text form that [MAC.String] writes, in either case.
// It accepts nothing else: no EUI-64, no dashes, no missing leading zero.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 3*MACLen-1 {
		return MAC{}, fmt.Errorf("parse MAC %.40q: %w", s, errMAC)
	}
	for i := range m {
		hi, lo := unhex(s[3*i]), unhex(s[3*i+1])
		if hi > 15 || lo > 15 || (i < MACLen-1 && s[3*i+2] != ':') {
			return MAC{}, fmt.Errorf("parse MAC %.40q: %w", s, errMAC)
		}
		m[i] = hi<<4 | lo
	}
	return m, nil
}

// unhex returns the value of a hexadecimal digit, or 255.
func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// String returns the lower-case colon form that flannel stores.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText implements encoding.TextMarshaler: in JSON a MAC is the text of [MAC.String].
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// IsUnicast reports whether m can be the address of one station: not zero, and
// without the group bit (IEEE 802-2014 section 8.2.2), which broadcast has too.
func (m MAC) IsUnicast() bool { return m != MAC{} && m[0]&1 == 0 }
