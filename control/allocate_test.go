package control

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func network(t testing.TB, text string) Network {
	t.Helper()
	n, err := ParseNetwork([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// allFree is the slow obvious reference: every subnet from Min to Max, each held
// against every prefix taken that does not cover the network.
func allFree(r subnetRange, taken []netip.Prefix) []netip.Prefix {
	var free []netip.Prefix
	for i := range r.count() {
		p := r.subnetAt(i)
		takes := func(q netip.Prefix) bool { return q.Overlaps(p) && q.Bits() > r.network.Bits() }
		if r.holds(p) && !slices.ContainsFunc(taken, takes) {
			free = append(free, p)
		}
	}
	return free
}

func TestAllocatePicksAmongAllFree(t *testing.T) {
	tests := []struct {
		name, config string
		taken        []string
		free         int
	}{
		{"empty", `{"Network":"10.3.0.0/24","SubnetLen":28}`, nil, 15},
		{"bounds", `{"Network":"10.3.0.0/24","SubnetLen":28,"SubnetMin":"10.3.0.0","SubnetMax":"10.3.0.32"}`, nil, 3},
		{"same length", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.16/28", "10.3.0.240/28", "10.3.0.16/28"}, 13},
		{"longer", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.17/32", "10.3.0.24/30", "10.3.0.64/29"}, 13},
		{"shorter", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.128/25", "10.3.0.144/28", "10.3.0.0/26"}, 4},
		{"the network", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.0/24"}, 15},
		{"more than it", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.0.0.0/8"}, 15},
		{"more than it and one", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.0.0.0/8", "10.3.0.16/28"}, 14},
		{"outside", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.4.0.0/24", "10.2.255.0/24", "fd00::/8"}, 15},
		{"unmasked", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.31/28"}, 14},
		{"two halves", `{"Network":"10.3.0.0/24","SubnetLen":28}`, []string{"10.3.0.0/25", "10.3.0.128/25"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := network(t, tt.config)
			taken := append([]netip.Prefix{{}}, prefixes(tt.taken)...)
			r, _ := n.ipv4()
			want := allFree(r, taken)
			if len(want) != tt.free {
				t.Fatalf("the reference finds %d free, want %d", len(want), tt.free)
			}
			checkAllocate(t, n, taken, want)
		})
	}
}

// checkAllocate asks for each of the free subnets in turn and wants exactly want.
func checkAllocate(t *testing.T, n Network, taken, want []netip.Prefix) {
	t.Helper()
	if len(want) == 0 {
		if p, _, err := Allocate(n, Node{}, taken, rand.IntN); !errors.Is(err, ErrNoSubnet) {
			t.Fatalf("nothing is free, allocated %v, %v", p, err)
		}
		return
	}
	for i, w := range want {
		got, _, err := Allocate(n, Node{}, taken, func(total int) int {
			if total != len(want) {
				t.Errorf("picks among %d, want %d", total, len(want))
			}
			return i
		})
		if err != nil || got != w {
			t.Fatalf("pick %d = %v, %v, want %v", i, got, err, w)
		}
	}
}

func TestAllocateAgainstReference(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		n := network(t, fmt.Sprintf(`{"Network":"10.3.0.0/22","SubnetLen":%d}`, 24+rnd.IntN(5)))
		var taken []netip.Prefix
		for range rnd.IntN(40) {
			a := netip.AddrFrom4([4]byte{10, 3, byte(rnd.IntN(6)), byte(rnd.IntN(256))})
			taken = append(taken, netip.PrefixFrom(a, 21+rnd.IntN(12)))
		}
		r, _ := n.ipv4()
		checkAllocate(t, n, taken, allFree(r, taken))
		if t.Failed() {
			t.Fatalf("seed %d, network %v, taken %v", seed, n, taken)
		}
	}
}

func TestAllocateFamiliesIndependently(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	v4, v6, err := Allocate(n, Node{}, []netip.Prefix{prefix("fd10:6:0:1::/64")}, func(int) int { return 0 })
	if err != nil || v4 != prefix("10.3.1.0/24") || v6 != prefix("fd10:6:0:2::/64") {
		t.Errorf("allocated %v %v, %v", v4, v6, err)
	}
	if _, _, err := Allocate(n, Node{}, []netip.Prefix{prefix("fd10:6::/49"), prefix("fd10:6:0:8000::/49")}, rand.IntN); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("IPv6 is full: %v", err)
	}
	if _, v6, err = Allocate(n, Node{}, []netip.Prefix{prefix("fd10:6::/47"), prefix("fd10:6::/48")}, func(int) int { return 0 }); err != nil || v6 != prefix("fd10:6:0:1::/64") {
		t.Errorf("nothing of IPv6 is taken: %v, %v", v6, err)
	}
	only6 := network(t, `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"4000::/2","IPv6SubnetLen":64}`)
	v4, v6, err = Allocate(only6, Node{}, nil, func(n int) int { return n - 1 })
	if err != nil || v4.IsValid() || v6 != prefix("7fff:ffff:ffff:ffff::/64") {
		t.Errorf("last of 2^62: %v %v, %v", v4, v6, err)
	}
}

func TestCompatible(t *testing.T) {
	v4 := network(t, `{"Network":"10.3.0.0/16","SubnetMax":"10.3.9.0"}`)
	dual := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	none := netip.Prefix{}
	tests := []struct {
		n      Network
		p4, p6 netip.Prefix
		want   bool
	}{
		{v4, prefix("10.3.1.0/24"), none, true},
		{v4, prefix("10.3.9.0/24"), none, true},
		{v4, prefix("10.3.0.0/24"), none, false},
		{v4, prefix("10.3.10.0/24"), none, false},
		{v4, prefix("10.3.1.0/25"), none, false},
		{v4, prefix("10.3.1.1/24"), none, false},
		{v4, none, none, false},
		{v4, prefix("10.3.1.0/24"), prefix("fd10:6:0:8::/64"), false},
		{dual, prefix("10.3.1.0/24"), prefix("fd10:6:0:8::/64"), true},
		{dual, prefix("10.3.1.0/24"), none, false},
		{dual, prefix("fd10:6:0:8::/64"), prefix("10.3.1.0/24"), false},
	}
	for _, tt := range tests {
		if got := Compatible(tt.n, tt.p4, tt.p6); got != tt.want {
			t.Errorf("Compatible(%v, %v) = %v", tt.p4, tt.p6, got)
		}
	}
}

func TestAllocatePrevious(t *testing.T) {
	dual := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	previous := []netip.Prefix{prefix("fd10:6:0:8::/64"), prefix("10.9.1.0/24"), prefix("10.3.4.0/24"), prefix("10.3.6.0/24")}
	for _, tt := range []struct {
		name     string
		previous []netip.Prefix
		taken    []netip.Prefix
		v4, v6   string
	}{
		{"free", previous, []netip.Prefix{prefix("10.3.5.0/24")}, "10.3.4.0/24", "fd10:6:0:8::/64"},
		{"a part is somebody's", previous, []netip.Prefix{prefix("10.3.4.128/25")}, "10.3.6.0/24", "fd10:6:0:8::/64"},
		{"none of one family is free", previous, []netip.Prefix{prefix("fd10:6::/52"), prefix("10.3.5.0/24")}, "10.3.4.0/24", "fd10:6:0:1000::/64"},
		{"what covers the network", previous, []netip.Prefix{{}, prefix("10.0.0.0/8"), prefix("fd10:6::/48")}, "10.3.4.0/24", "fd10:6:0:8::/64"},
		{"memory of one family", previous[:2], nil, "10.3.1.0/24", "fd10:6:0:8::/64"},
		{"no memory", nil, nil, "10.3.1.0/24", "fd10:6:0:1::/64"},
	} {
		v4, v6, err := Allocate(dual, Node{Previous: tt.previous}, tt.taken, func(int) int { return 0 })
		if err != nil || v4 != prefix(tt.v4) || v6 != prefix(tt.v6) {
			t.Errorf("%s: %v %v, %v, want %s %s", tt.name, v4, v6, err, tt.v4, tt.v6)
		}
	}
}

func TestAppendTaken(t *testing.T) {
	v4 := network(t, `{"Network":"10.3.0.0/16"}`)
	dual := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	lease := `{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"udp"}`
	for _, tt := range []struct {
		name       string
		n          Network
		key, value string
		want       []string
	}{
		{"a lease", v4, "10.3.4.0-24", lease, []string{"10.3.4.0/24"}},
		{"a long one", v4, "10.3.4.0-30", lease, []string{"10.3.4.0/30"}},
		{"a short one", v4, "10.3.128.0-17", lease, []string{"10.3.128.0/17"}},
		{"junk value", v4, "10.3.4.0-24", "junk", []string{"10.3.4.0/24"}},
		{"junk value, long", v4, "10.3.4.4-30", "junk", []string{"10.3.4.4/30"}},
		{"junk value, short", v4, "10.3.128.0-17", "junk", nil},
		{"the network", v4, "10.3.0.0-16", lease, nil},
		{"more than it", v4, "10.0.0.0-8", lease, nil},
		{"outside", v4, "10.4.4.0-24", lease, nil},
		{"junk key", v4, "10.3.4.0-024", lease, nil},
		{"family that is off", v4, "10.3.4.0-24&fd10:6:0:8::-64", lease, []string{"10.3.4.0/24"}},
		{"both", dual, "10.3.4.0-24&fd10:6:0:8::-64", "junk", []string{"10.3.4.0/24", "fd10:6:0:8::/64"}},
		{"one of them", dual, "10.0.0.0-8&fd10:6:0:8::-64", lease, []string{"fd10:6:0:8::/64"}},
		{"IPv6 only", dual, "0.0.0.0-0&fd10:6::-47", lease, nil},
		{"one junk and short", dual, "10.3.4.0-24&fd10:6::-52", "junk", []string{"10.3.4.0/24"}},
	} {
		if got := AppendTaken(nil, tt.n, tt.key, []byte(tt.value)); !slices.Equal(got, prefixes(tt.want)) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAppendHeld(t *testing.T) {
	v4 := network(t, `{"Network":"10.3.0.0/16"}`)
	dual := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	lease := string(Lease{Subnet: prefix("10.3.4.0/24"), PublicIP: netip.MustParseAddr("192.168.0.9"),
		PublicIPv6: netip.MustParseAddr("fd99::9"), BackendType: "vxlan",
		Backend: VTEPData{VNI: 1, MAC: [6]byte{2}}, BackendV6: VTEPData{VNI: 1, MAC: [6]byte{2}}}.Value())
	for _, tt := range []struct {
		name       string
		n          Network
		key, value string
		want       []string
	}{
		{"a lease", v4, "10.3.4.0-24", lease, []string{"10.3.4.0/24"}},
		{"a long one", v4, "10.3.4.128-25", lease, []string{"10.3.4.128/25"}},
		{"a short one", v4, "10.3.128.0-17", lease, []string{"10.3.128.0/17"}},
		{"junk value", v4, "10.3.4.0-24", "junk", nil},
		{"no VTEP", v4, "10.3.4.0-24", `{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"vxlan"}`, nil},
		{"another backend", v4, "10.3.4.0-24", `{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"udp"}`, nil},
		{"the network", v4, "10.3.0.0-16", lease, nil},
		{"outside", v4, "10.4.4.0-24", lease, nil},
		{"junk key", v4, "10.3.4.0-024", lease, nil},
		{"family that is off", v4, "10.3.4.0-24&fd10:6:0:8::-64", lease, []string{"10.3.4.0/24"}},
		{"both", dual, "10.3.4.0-24&fd10:6:0:8::-64", lease, []string{"10.3.4.0/24", "fd10:6:0:8::/64"}},
	} {
		if got := AppendHeld(nil, tt.n, tt.key, []byte(tt.value)); !slices.Equal(got, prefixes(tt.want)) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func BenchmarkAllocate(b *testing.B) {
	n := network(b, `{"Network":"10.0.0.0/8","SubnetLen":30}`)
	r, _ := n.ipv4()
	var taken []netip.Prefix
	for i := range uint64(100_000) {
		taken = append(taken, r.subnetAt((i*7919)%r.count()))
	}
	for b.Loop() {
		if _, _, err := Allocate(n, Node{}, taken, rand.IntN); err != nil {
			b.Fatal(err)
		}
	}
}
