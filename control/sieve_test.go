package control

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// sieveNetwork has two families.
func sieveNetwork(t *testing.T) Network {
	t.Helper()
	n, err := ParseNetwork([]byte(`{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd10:5::/32","Backend":{"Type":"vxlan"}}`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// junkLeases makes leases from a hundredth revision on, each of a node of its own; key makes the key of one.
func junkLeases(t *testing.T, n int, key func(i int) string) (all []Lease) {
	t.Helper()
	for i := range n {
		v4, v6, err := ParseKey(key(i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Lease{Subnet: v4, IPv6Subnet: v6, PublicIP: netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)}), CreateRevision: int64(100 + i)})
	}
	return all
}

// TestSieve: of however many leases few are remembered, and the one that can be used is among them.
func TestSieve(t *testing.T) {
	t.Parallel()
	usableKey := func(i int) string { return fmt.Sprintf("0.0.0.0-0&fd10:5:0:%x::-64", 1+i) }
	for name, c := range map[string]struct {
		junk func(i int) string
		of   func(l *Lease) // nil: each is of a node of its own
		want int            // how many of the junk are remembered
	}{
		"outside the network":           {func(i int) string { return fmt.Sprintf("11.%d.%d.0-24", i>>8, i&0xff) }, nil, maxUseless},
		"of another length":             {func(i int) string { return fmt.Sprintf("10.5.%d.%d-31", i>>7&0xff, i<<1&0xff) }, nil, maxUseless},
		"for one IPv4 subnet":           {func(i int) string { return fmt.Sprintf("10.5.9.0-24&fd10:5:0:%x::-64", 1+i) }, nil, maxAlike},
		"for one, IPv6 of no use":       {func(i int) string { return fmt.Sprintf("10.5.9.0-24&fd11:5:0:%x::-64", 1+i) }, nil, maxAlike},
		"for few IPv4 subnets":          {func(i int) string { return fmt.Sprintf("10.5.%d.0-24&fd10:5:0:%x::-64", 8+i&7, 1+i) }, nil, 8 * maxAlike},
		"fewer than there is room for":  {usableKey, nil, 3 * maxUseless},
		"of one node":                   {usableKey, func(l *Lease) { l.PublicIP = netip.MustParseAddr("192.0.2.9") }, maxOfNode},
		"of no node":                    {usableKey, func(l *Lease) { l.PublicIP = netip.Addr{} }, maxUseless},
		"IPv6 outside the network only": {func(i int) string { return fmt.Sprintf("0.0.0.0-0&fd11:5:0:%x::-64", 1+i) }, nil, maxUseless},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			junk := junkLeases(t, 3*maxUseless, c.junk)
			for i := range junk {
				if c.of != nil {
					c.of(&junk[i])
				}
			}
			young := Lease{PublicIP: netip.MustParseAddr("192.0.2.1"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), IPv6Subnet: netip.MustParsePrefix("fd10:5:0:fff0::/64"), CreateRevision: 1 << 40}
			old := Lease{PublicIP: netip.MustParseAddr("192.0.2.2"), Subnet: netip.MustParsePrefix("10.5.9.0/24"), CreateRevision: 1}
			lengths := &Lengths{}
			lengths.AddNetwork(sieveNetwork(t))

			s := NewSieve(sieveNetwork(t), lengths)
			for i := range junk {
				if s.HasRoom(&junk[i]) {
					s.Add(&junk[i])
				}
			}
			if s.leases != c.want || !s.HasRoom(&young) {
				t.Errorf("one after another: %d have room, want %d; then there is room for the one that can be used: %v", s.leases, c.want, s.HasRoom(&young))
			}

			all := slices.Concat(junk[:1000], []Lease{young}, junk[1000:], []Lease{old})
			chosen := NewSieve(sieveNetwork(t), lengths).Choose(slices.Clone(all), func(string) bool { return false })
			if d := len(chosen) - c.want; d < 1 || d > 2 || !slices.Contains(chosen, young) || !slices.Contains(chosen, old) {
				t.Errorf("of a list: %d are chosen, want %d and two that can be used", len(chosen), c.want)
			}
			if !slices.IsSortedFunc(chosen, func(x, y Lease) int { return slices.Index(all, x) - slices.Index(all, y) }) {
				t.Error("of a list: they are not in its order")
			}

			last := junk[len(junk)-1].Key()
			chosen = NewSieve(sieveNetwork(t), lengths).Choose(slices.Clone(all), func(key string) bool { return key == last })
			if !slices.Contains(chosen, junk[len(junk)-1]) || !slices.Contains(chosen, young) {
				t.Errorf("the one that was known is not chosen")
			}
		})
	}
}

// TestSieveIsBounded: there is an end, whatever the leases are, and what was taken out makes room. The oldest stay.
func TestSieveIsBounded(t *testing.T) {
	t.Parallel()
	junk := junkLeases(t, MaxLeases+5000, func(i int) string { return fmt.Sprintf("0.0.0.0-0&fd10:5:%x:%x::-64", 1+i>>15, 1+i&0x7fff) })
	slices.Reverse(junk)
	for name, n := range map[string]Network{"known network": sieveNetwork(t), "unknown network": {}} {
		s := NewSieve(n, nil)
		chosen := s.Choose(slices.Clone(junk), func(string) bool { return false })
		if len(chosen) != MaxLeases || chosen[0].CreateRevision != 100+MaxLeases-1 {
			t.Errorf("%s: %d are chosen, the youngest of revision %d", name, len(chosen), chosen[0].CreateRevision)
		}
		for i := range chosen {
			s.Add(&chosen[i])
		}
		for range 2 {
			if s.HasRoom(&junk[0]) {
				t.Errorf("%s: there is room for more than %d", name, MaxLeases)
			}
			if s.Remove(&chosen[7]); !s.HasRoom(&junk[0]) {
				t.Errorf("%s: one went, and there is no room for another", name)
			}
			s.Add(&junk[0])
		}
	}
}

// TestSieveOfOneNode: 256 entries that no node can have, of a newcomer's address, keep out its lease.
func TestSieveOfOneNode(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	lengths := &Lengths{}
	s := NewSieve(n, lengths)
	var all []Lease
	for i := range 256 {
		v4, v6, err := ParseKey(fmt.Sprintf("10.3.%d.0-24&fd00:0:0:%x::-64", 1+i/8, i+1))
		if err != nil {
			t.Fatal(err)
		}
		if Compatible(n, v4, v6) {
			t.Fatal("it fits")
		}
		l := lease("10.3.1.0/24", 7, int64(10+i))
		l.Subnet, l.IPv6Subnet = v4, v6
		all = append(all, l)
	}
	newcomer := lease("10.3.99.0/24", 7, 5000)
	chosen := s.Choose(append(all, newcomer), func(string) bool { return false })
	for i := range chosen {
		if chosen[i].Key() == newcomer.Key() {
			return
		}
	}
	t.Errorf("%d leases are chosen, and not the one that fits", len(chosen))
}
