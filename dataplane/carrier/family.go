package carrier

import "net/netip"

// The address families. What there is for each of them is indexed by it; Families is their number.
const (
	Family4 = iota
	Family6
	Families
)

// FamilyOf returns the family of an address that is not IPv4-mapped.
func FamilyOf(a netip.Addr) int {
	if a.Is4() {
		return Family4
	}
	return Family6
}
