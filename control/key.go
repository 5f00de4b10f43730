package control

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// noIPv4 stands for the IPv4 subnet in the key of an IPv6-only lease. flannel
// writes it so, and cannot read a key without an IPv4 part: one that it cannot
// read makes it withdraw every lease (facts D1).
const noIPv4 = "0.0.0.0-0"

// maxKey is the length of the longest key: two longest addresses and lengths.
const maxKey = len("255.255.255.255-31&") + len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-127")

// Key returns the name of the lease in the store, below the prefix of all leases,
// in flannel's text: "10.5.34.0-24", or with two families
// "10.6.10.0-24&fd10:6:0:8::-64". An IPv6-only lease has flannel's "0.0.0.0-0" for
// its IPv4 part. ParseKey is the inverse. A Claimant stands behind that: "10.5.34.0-24@node-7".
func (l Lease) Key() string {
	b := make([]byte, 0, maxKey)
	if l.Subnet.IsValid() {
		b = appendKey(b, l.Subnet)
	} else {
		b = append(b, noIPv4...)
	}
	if l.IPv6Subnet.IsValid() {
		b = appendKey(append(b, '&'), l.IPv6Subnet)
	}
	if l.Claimant != "" {
		b = append(append(b, '@'), l.Claimant...)
	}
	return string(b)
}

// CIDRsOf returns the subnets in a key, as Lease.CIDRs does: for log lines and messages. What is not the key of a lease stays
// as it is.
func CIDRsOf(key string) string {
	subnets, _, _ := strings.Cut(key, "@") // Claimant
	v4, v6, err := ParseKey(subnets)
	if err != nil {
		return key
	}
	return Lease{Subnet: v4, IPv6Subnet: v6}.CIDRs()
}

func appendKey(b []byte, p netip.Prefix) []byte {
	b = append(p.Addr().AppendTo(b), '-')
	return strconv.AppendInt(b, int64(p.Bits()), 10)
}

// ParseKey reads what Key writes and nothing else: no leading zero, no other
// spelling of an IPv6 address, no bits beyond the prefix length. The lengths are
// flannel's: 1..31 and 1..127. A family that the key lacks is the zero Prefix.
func ParseKey(key string) (v4, v6 netip.Prefix, err error) {
	if len(key) > maxKey {
		return v4, v6, fmt.Errorf("key %.40q is longer than %d bytes", key, maxKey)
	}
	text4, text6, both := strings.Cut(key, "&")
	if !both || text4 != noIPv4 {
		if v4, err = parseKeyPart(text4, 32); err != nil {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("key %.64q: %w", key, err)
		}
	}
	if both {
		if v6, err = parseKeyPart(text6, 128); err != nil {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("key %.64q: %w", key, err)
		}
	}
	return v4, v6, nil
}

// parseKeyPart reads "<address>-<length>" of a family of bits-bit addresses.
func parseKeyPart(s string, bits int) (netip.Prefix, error) {
	addr, length, ok := strings.Cut(s, "-")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%.40q is not <address>-<length>", s)
	}
	a, err := ParseAddr("subnet", addr, bits)
	if err != nil {
		return netip.Prefix{}, err
	}
	n, err := strconv.ParseUint(length, 10, 8)
	if err != nil || n < 1 || n >= uint64(bits) {
		return netip.Prefix{}, fmt.Errorf("length %.40q is not in 1..%d", length, bits-1)
	}
	p, err := a.Prefix(int(n))
	if err != nil || p.Addr() != a {
		return netip.Prefix{}, fmt.Errorf("subnet %s has bits beyond length %d", a, n)
	}
	if canonical := string(appendKey(nil, p)); canonical != s {
		return netip.Prefix{}, fmt.Errorf("%.40q is not in the usual form %s", s, canonical)
	}
	return p, nil
}
