package control

import (
	"errors"
	"fmt"
	"net/netip"
)

// familyRules is what the checks of one family's part of the network config differ in.
type familyRules struct {
	field    string // the name of the network's key, which prefixes the name of the others
	prefix   string // "" or "IPv6"
	bits     int    // of an address
	maxLen   int    // longest SubnetLen
	minimum  int    // longest network that can be used with a default SubnetLen
	usual    int    // SubnetLen of a network that holds four of them
	refused  []netip.Prefix
	assigned bool // others give the subnets out: their length and bounds are not looked at
}

func ipv4Rules() familyRules {
	return familyRules{field: "Network", bits: 32, maxLen: 30, minimum: 28, usual: 24, refused: []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	}}
}

func ipv6Rules() familyRules {
	return familyRules{field: "IPv6Network", prefix: "IPv6", bits: 128, maxLen: 126, minimum: 124, usual: 64, refused: []netip.Prefix{
		netip.MustParsePrefix("::/16"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	}}
}

// maxIndexBits bounds the number of subnets of a network to 2^62, so that one
// has an index that fits an int64. Only an explicit IPv6SubnetLen can exceed it.
const maxIndexBits = 62

// subnetRange is one family's network and what may be leased of it.
type subnetRange struct {
	network  netip.Prefix
	length   int
	min, max netip.Addr
}

// check applies flannel's defaults and checks in flannel's order. Its error joins what is wrong. The message is
// flannel's, with the name of the key at fault if it is one of IPv6, and followed by the field and
// its value if flannel leaves them out.
func (f familyRules) check(network string, length uint, low, high string) (subnetRange, error) {
	p, err := netip.ParsePrefix(network)
	if err != nil || p.Addr().BitLen() != f.bits || p.Addr().Is4In6() {
		return subnetRange{}, fmt.Errorf("please define a correct %s parameter in the flannel config: %s is %.40q", f.field, f.field, network)
	}
	r := subnetRange{network: p.Masked()}
	for _, bad := range f.refused {
		if r.network.Overlaps(bad) {
			return subnetRange{}, fmt.Errorf("%s %s overlaps %s, which cannot be routed", f.field, r.network, bad)
		}
	}
	if f.assigned {
		return r, nil
	}
	var first, last netip.Prefix
	if r.length, err = f.checkLen(r.network, length); err == nil {
		first, last = r.subnetAt(1), r.subnetAt(r.count()-1)
	} else {
		r.length = f.bits // so every address is on a boundary
	}
	var lowErr, highErr error
	r.min, lowErr = f.checkBound("SubnetMin", low, r, first.Addr())
	r.max, highErr = f.checkBound("SubnetMax", high, r, last.Addr())
	if err := errors.Join(err, lowErr, highErr); err != nil {
		return subnetRange{}, err
	}
	if r.min.Compare(r.max) > 0 {
		return subnetRange{}, fmt.Errorf("%sSubnetMin %s is above %sSubnetMax %s", f.prefix, r.min, f.prefix, r.max)
	}
	return r, nil
}

func (f familyRules) checkLen(network netip.Prefix, length uint) (int, error) {
	name := f.prefix + "SubnetLen"
	switch {
	case length > uint(f.maxLen):
		return 0, fmt.Errorf("%s must be less than /%d: %s is %d", name, f.maxLen+1, name, length)
	case length > 0 && int(length) < network.Bits()+2:
		return 0, fmt.Errorf("%s must be able to accommodate at least four subnets: %s is %s, %s is %d",
			f.named(), f.field, network, name, length)
	case length > 0 && int(length) > network.Bits()+maxIndexBits:
		return 0, fmt.Errorf("%s %d is more than %d bits longer than %s %s", name, length, maxIndexBits, f.field, network)
	case length > 0:
		return int(length), nil
	case network.Bits() > f.minimum:
		return 0, fmt.Errorf("%s is too small. Minimum useful network prefix is /%d: %s is %s",
			f.named(), f.minimum, f.field, network)
	case network.Bits()+2 <= f.usual:
		return f.usual, nil
	}
	return network.Bits() + 2, nil
}

// named is how flannel names the network of IPv4 in some messages; that of IPv6 has its key.
func (f familyRules) named() string {
	if f.prefix == "" {
		return "network"
	}
	return f.field
}

// boundary names the key that says where subnets begin.
func (f familyRules) boundary() string {
	if f.prefix == "" {
		return "a SubnetLen"
	}
	return "an IPv6SubnetLen"
}

// checkBound reads SubnetMin or SubnetMax; absent and unspecified mean the default.
func (f familyRules) checkBound(name, text string, r subnetRange, def netip.Addr) (netip.Addr, error) {
	name = f.prefix + name
	if text == "" {
		return def, nil
	}
	a, err := ParseAddr(name, text, f.bits)
	switch {
	case err != nil:
		return a, err
	case a.IsUnspecified():
		return def, nil
	case !r.network.Contains(a):
		return a, fmt.Errorf("%s is not in the range of the %s: %s is %s, %s is %s", name, f.field, name, a, f.field, r.network)
	case netip.PrefixFrom(a, r.length).Masked().Addr() != a:
		return a, fmt.Errorf("%s is not on %s boundary: %s", name, f.boundary(), a)
	}
	return a, nil
}
