package control

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// wideNetwork holds all hosts of its tests: 10.99.0.0/16.
const wideNetwork = `{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0"}`

// inWide is the underlay of host 1 in wideNetwork.
func inWide(onLink ...string) Underlay {
	return Underlay{OnLink: prefixes(onLink), Needs: []Need{
		{Addr: addr("10.99.0.1"), What: "the underlay address of this host", Own: true},
		{Addr: addr("10.99.7.254"), What: "the default gateway of this host"},
		{Addr: addr("10.200.0.53"), What: "the metadata service of clouds", Yields: true},
	}}
}

// TestPeersOnAnUnderlayInside: if a network holds underlay addresses, only a subnet that takes one
// away is refused, and of two leases that do not go together the newer one.
func TestPeersOnAnUnderlayInside(t *testing.T) {
	at := func(subnet string, i int, age int64, public string) Lease {
		return with(lease(subnet, i, age), func(l *Lease) { l.PublicIP = addr(public) })
	}
	self := at("10.10.0.0/20", 1, 5, "10.99.0.1")
	good := at("10.10.16.0/20", 2, 6, "10.99.0.2")
	for _, tt := range []struct {
		name   string
		onLink string
		leases []Lease
		peers  int // beside good
		reject string
	}{
		{"another", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 7, "10.99.0.3")}, 1, ""},
		{"outside", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 7, "192.0.2.3")}, 1, ""},
		{"holds the own address", "10.99.0.0/16", []Lease{at("10.99.0.0/24", 3, 7, "192.0.2.3")}, 0, "subnet 10.99.0.0/24 holds 10.99.0.1, the underlay address of this host"},
		{"is the own address, older", "10.99.0.0/16", []Lease{at("10.99.0.1/32", 3, 1, "192.0.2.3")}, 0, "subnet 10.99.0.1/32 holds 10.99.0.1, "},
		{"holds the gateway", "10.99.0.0/16", []Lease{at("10.99.7.0/24", 3, 1, "192.0.2.3")}, 0, "subnet 10.99.7.0/24 holds 10.99.7.254, the default gateway of this host"},
		{"holds a peer", "10.99.0.0/16", []Lease{at("10.99.0.2/31", 3, 7, "192.0.2.3")}, 0, "subnet 10.99.0.2/31 holds PublicIP 10.99.0.2 of the older lease 10.10.16.0/20"},
		{"holds itself", "10.99.0.0/16", []Lease{at("10.98.0.0/20", 3, 1, "10.98.0.3")}, 0, "subnet 10.98.0.0/20 holds PublicIP 10.98.0.3 of the same lease"},
		{"in an older subnet", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 7, "10.10.17.1")}, 0, "PublicIP 10.10.17.1 is inside subnet 10.10.16.0/20 of the older lease 10.10.16.0/20"},
		{"in the own subnet", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 1, "10.10.1.1")}, 0, "PublicIP 10.10.1.1 is inside this node's own subnet 10.10.0.0/20"},
		{"holds what yields", "10.99.0.0/16", []Lease{at("10.200.0.0/20", 3, 7, "192.0.2.3")}, 1, ""},
		{"on link without known hosts", "10.99.0.0/16", []Lease{at("10.99.32.0/20", 3, 7, "10.99.0.3")}, 1, ""},
		{"a further address of this host", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 1, "192.0.2.200")}, 0, "PublicIP 192.0.2.200 is an address of this host"},
		{"the gateway", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 7, "10.99.7.254")}, 1, ""}, // it may be a node
		{"broadcast on link", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 1, "10.99.255.255")}, 0, "PublicIP 10.99.255.255 is the first or last address of 10.99.0.0/16"},
		{"the network on link", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 1, "10.99.0.0")}, 0, "PublicIP 10.99.0.0 is the first or last address of 10.99.0.0/16"},
		{"the last of a /31", "10.99.3.0/31", []Lease{at("10.10.32.0/20", 3, 7, "10.99.3.1")}, 1, ""},
		{"the last of a /30", "10.99.3.0/30", []Lease{at("10.10.32.0/20", 3, 7, "10.99.3.3")}, 0, "PublicIP 10.99.3.3 is the first or last address of 10.99.3.0/30"},
		{"broadcast elsewhere", "10.99.0.0/16", []Lease{at("10.10.32.0/20", 3, 7, "10.98.255.255")}, 1, ""}, // nobody here knows
		{"around the on-link prefix", "10.99.0.0/21", []Lease{at("10.99.0.0/20", 3, 7, "10.99.0.3")}, 1, ""},
		{"around it, but not around the gateway's", "10.99.0.0/22", []Lease{at("10.99.0.0/20", 3, 7, "10.99.0.3")}, 0, "holds 10.99.7.254, "},
		{"a refused one's address is nobody's", "10.99.0.0/16", []Lease{
			at("10.10.16.0/24", 3, 7, "10.40.0.3"), at("10.40.0.0/20", 4, 8, "10.99.0.4")}, 1, "overlaps 10.10.16.0/20 of the older"},
	} {
		r := NewRIB(network(t, wideNetwork))
		r.Underlay = inWide(tt.onLink)
		r.Underlay.Needs = append(r.Underlay.Needs, Need{Addr: addr("192.0.2.200"), What: "the public IP of this host", Own: true})
		r.Apply(Update{Reset: true, Leases: append([]Lease{self, good}, tt.leases...)})
		peers, rejected := r.Peers(self)
		if !slices.ContainsFunc(peers, func(p dataplane.Peer) bool { return p.Addr == good.PublicIP }) || len(peers) != 1+tt.peers {
			t.Errorf("%s: peers %v, want that of the good lease and %d more", tt.name, peers, tt.peers)
		}
		switch {
		case tt.reject == "" && len(rejected) == 0:
		case tt.reject == "" || len(rejected) != 1 || !strings.Contains(rejected[0].Err.Error(), tt.reject):
			t.Errorf("%s: rejected %v, want %q", tt.name, rejected, tt.reject)
		case strings.HasPrefix(tt.reject, "subnet") != (Reason(rejected[0].Err) == "subnet_holds_underlay") && strings.Contains(tt.reject, "PublicIP"):
			t.Errorf("%s: reason %q", tt.name, Reason(rejected[0].Err))
		}
	}
}

// TestAllocateLeavesTheUnderlay: no subnet that a node chooses holds what it needs of its underlay
// or a public IP, and one in an on-link prefix is the last resort.
func TestAllocateLeavesTheUnderlay(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		underlay     Underlay
		previous     []string
		leases       []string // values
		want         []string // all that can be chosen
		fails        string
	}{
		{"as usual", `{"Network":"10.99.0.0/16","SubnetLen":18}`, Underlay{}, nil, nil, []string{"10.99.64.0/18", "10.99.128.0/18", "10.99.192.0/18"}, ""},
		{"own address", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0"}`, inWide(), nil, nil,
			[]string{"10.99.64.0/18", "10.99.128.0/18", "10.99.192.0/18"}, ""},
		{"on link", `{"Network":"10.99.0.0/16","SubnetLen":18}`, inWide("10.99.64.0/20"), nil, nil, []string{"10.99.128.0/18", "10.99.192.0/18"}, ""},
		{"all on link", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0"}`, inWide("10.99.0.0/16"), nil, nil,
			[]string{"10.99.64.0/18", "10.99.128.0/18", "10.99.192.0/18"}, ""},
		{"nothing else is left", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0","SubnetMax":"10.99.64.0"}`, inWide("10.99.64.0/18"), nil, nil,
			[]string{"10.99.64.0/18"}, ""},
		{"nothing is left", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0","SubnetMax":"10.99.0.0"}`, inWide(), nil, nil, nil,
			"as 10.99.0.1, the underlay address of this host; 10.99.7.254, the default gateway"},
		{"a longer on-link prefix keeps them", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0","SubnetMax":"10.99.0.0"}`, inWide("10.99.0.0/21"), nil, nil,
			[]string{"10.99.0.0/18"}, ""},
		{"the previous one holds the gateway", `{"Network":"10.99.0.0/16","SubnetLen":18,"SubnetMin":"10.99.0.0"}`, inWide(), []string{"10.99.0.0/18", "10.99.192.0/18"}, nil,
			[]string{"10.99.192.0/18"}, ""},
		{"the previous one on link", `{"Network":"10.99.0.0/16","SubnetLen":18}`, inWide("10.99.0.0/16"), []string{"10.99.128.0/18"}, nil, []string{"10.99.128.0/18"}, ""},
		{"public IPs", `{"Network":"10.99.0.0/16","SubnetLen":18}`, Underlay{}, nil,
			[]string{`{"PublicIP":"10.99.65.1","PublicIPv6":null}`, `{"PublicIP":"10.98.0.1","PublicIPv6":"fd99::1"}`, `{"PublicIP":"x"}`, `{"PublicIP":"10.99.128.1`, ``},
			[]string{"10.99.128.0/18", "10.99.192.0/18"}, ""},
		{"IPv6", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd99::/48","IPv6SubnetLen":50,"IPv6SubnetMin":"fd99::"}`,
			Underlay{Needs: []Need{{Addr: addr("fd99::1")}}}, nil, []string{`{"PublicIP":"0.0.0.0","PublicIPv6":"fd99:0:0:4000::9","BackendType":"vxlan"}`},
			[]string{"fd99:0:0:8000::/50", "fd99:0:0:c000::/50"}, ""},
	} {
		n := network(t, tt.config)
		node := Node{Previous: prefixes(tt.previous), Underlay: tt.underlay}
		var taken []netip.Prefix
		for _, v := range tt.leases {
			taken = AppendPublic(taken, n, []byte(v))
		}
		got := map[netip.Prefix]bool{}
		for range 200 {
			v4, v6, err := Allocate(n, node, taken, rand.IntN)
			if err != nil {
				if tt.fails == "" || !errors.Is(err, ErrNoSubnet) || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%s: %v", tt.name, err)
				}
				break
			}
			if v4.IsValid() {
				got[v4] = true
			} else {
				got[v6] = true
			}
		}
		for _, p := range prefixes(tt.want) {
			if !got[p] {
				t.Errorf("%s: %s is never chosen", tt.name, p)
			}
			delete(got, p)
		}
		if len(got) > 0 {
			t.Errorf("%s: %v are chosen", tt.name, got)
		}
	}
}

// TestWantedUnderlay: the dataplane is told all that the underlay has in the network, and nothing else.
func TestWantedUnderlay(t *testing.T) {
	u := inWide("10.99.0.0/16", "192.0.2.0/24", "10.0.0.0/7")
	peers := []dataplane.Peer{{VTEP: dataplane.VTEP{Addr: addr("10.99.0.2")}}, {VTEP: dataplane.VTEP{Addr: addr("192.0.2.2")}}, {VTEP: dataplane.VTEP{Addr: addr("fd99::2")}}}
	got := u.Inside(network(t, wideNetwork).Prefixes(), peers)
	if want := prefixes([]string{"10.99.0.0/16", "10.99.0.1/32", "10.99.7.254/32", "10.200.0.53/32", "10.99.0.2/32"}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := u.Inside(network(t, `{"Network":"172.16.0.0/12"}`).Prefixes(), peers); len(got) > 0 {
		t.Errorf("outside: %v", got)
	}
}

// TestNewcomersCostNobodyAnything: whatever leases come, no admitted subnet takes an admitted public IP, or
// what this host needs, off the underlay, and no lease loses anything by a newer one.
func TestNewcomersCostNobodyAnything(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	any := func(bits int) netip.Prefix {
		a := netip.AddrFrom4([4]byte{10, byte(96 + rng.IntN(4)), byte(rng.IntN(3)), byte(rng.IntN(256))})
		return netip.PrefixFrom(a, bits).Masked()
	}
	for range 100 {
		u := inWide([]string{"10.99.0.0/16", "10.99.0.0/24", "10.96.0.0/14"}[rng.IntN(3)])
		r := NewRIB(network(t, wideNetwork))
		r.Underlay = u
		self := with(lease("10.10.0.0/20", 1, 1), func(l *Lease) { l.PublicIP = addr("10.99.0.1") })
		before, used := map[netip.Addr][]netip.Prefix{}, map[string]bool{}
		for i := range 30 {
			l := lease(any(9+rng.IntN(24)).String(), i+2, int64(i+2))
			if l.PublicIP = any(32).Addr(); used[l.Key()] || used[l.PublicIP.String()] {
				continue // that is another lease in the place of an older one
			}
			used[l.Key()], used[l.PublicIP.String()] = true, true
			r.Apply(Update{Leases: []Lease{l}})
			peers, _ := r.Peers(self)
			now := map[netip.Addr][]netip.Prefix{}
			for _, p := range peers {
				now[p.Addr] = p.Subnets
				for _, s := range p.Subnets {
					if need, ok := u.blocks(s); ok {
						t.Fatalf("%s is admitted and holds %s", s, need)
					}
					for _, q := range peers {
						if s.Contains(q.Addr) && !u.keeps(q.Addr, s) {
							t.Fatalf("%s is admitted and holds %s, as is that", s, q.Addr)
						}
					}
				}
			}
			for a, subnets := range before {
				for _, s := range subnets {
					if !slices.Contains(now[a], s) {
						t.Fatalf("%s of %s is lost by the newer %+v", s, a, l)
					}
				}
			}
			before = now
		}
	}
}
