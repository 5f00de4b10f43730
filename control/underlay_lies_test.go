package control

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// besides is an underlay with the store behind a gateway, a bridge of the host, and public IPs that are bounded.
func besides() Underlay {
	return Underlay{
		OnLink: prefixes([]string{"192.0.2.0/24"}),
		Needs: []Need{
			{Addr: addr("192.0.2.1"), What: "the underlay address of this host", Own: true},
			{Addr: addr("10.3.40.1"), What: "an address of the store", Route: prefix("0.0.0.0/0")},
			{Addr: addr("10.3.41.1"), What: "an address of the store", Route: prefix("10.3.41.0/25")},
			{Addr: addr("10.3.42.1"), What: "the next hop to an address of the store"},
			{Addr: addr("10.3.43.1"), What: "a name server of this host", Route: prefix("10.3.43.0/24")},
		},
		Links:  []Link{{prefix("10.3.50.0/24"), "br0"}, {prefix("10.3.51.16/28"), "br1"}, {prefix("10.3.64.0/18"), "br2"}},
		Locals: []netip.Addr{addr("10.3.50.1"), addr("192.0.2.1"), addr("198.51.100.1")},
		Public: prefixes([]string{"192.0.2.0/24", "198.51.100.0/24"}),
	}
}

// TestLeasesThatLie: a lease that would take the store, the way to it, a name server or a link away is refused by name, as is one with a
// public IP that cannot be a peer's.
func TestLeasesThatLie(t *testing.T) {
	for _, tt := range []struct{ subnet, public, refused string }{
		{"10.3.2.0/24", "192.0.2.9", ""},
		{"10.3.40.0/24", "192.0.2.9", "subnet 10.3.40.0/24 holds 10.3.40.1, an address of the store"},
		{"10.3.41.0/24", "192.0.2.9", ""}, // a more specific route leads there
		{"10.3.42.0/24", "192.0.2.9", "subnet 10.3.42.0/24 holds 10.3.42.1, the next hop to an address of the store"},
		{"10.3.43.0/24", "192.0.2.9", "subnet 10.3.43.0/24 holds 10.3.43.1, a name server of this host"},
		{"10.3.50.0/24", "192.0.2.9", "subnet 10.3.50.0/24 covers 10.3.50.0/24, a local link of br0"},
		{"10.3.51.0/24", "192.0.2.9", "subnet 10.3.51.0/24 covers 10.3.51.16/28, a local link of br1"},
		{"10.3.70.0/24", "192.0.2.9", ""}, // as beside a bridge of docker that is as large as the network
		{"10.3.2.0/24", "198.51.100.9", ""},
		{"10.3.2.0/24", "198.51.100.1", "PublicIP 198.51.100.1 is an address of this host"},
		{"10.3.2.0/24", "192.0.2.255", "PublicIP 192.0.2.255 is the first or last address of 192.0.2.0/24"},
		{"10.3.2.0/24", "10.3.50.255", "PublicIP 10.3.50.255 is outside of what peers may have here: [192.0.2.0/24 198.51.100.0/24]"},
		{"10.3.2.0/24", "8.8.8.8", "PublicIP 8.8.8.8 is outside of what peers may have here"},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		r.Underlay, r.Lengths = besides(), new(Lengths)
		self := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.PublicIP = addr("192.0.2.1") })
		good := with(lease("10.3.3.0/24", 2, 6), func(l *Lease) { l.PublicIP = addr("192.0.2.2") })
		r.Apply(Update{Reset: true, Leases: []Lease{self, good, with(lease(tt.subnet, 3, 1), func(l *Lease) { l.PublicIP = addr(tt.public) })}})
		peers, rejected := r.Peers(self)
		want := map[bool]int{true: 2, false: 1}[tt.refused == ""]
		if len(peers) != want || !slices.ContainsFunc(peers, func(p dataplane.Peer) bool { return p.Addr == good.PublicIP }) {
			t.Errorf("%s of %s: peers %v, want %d with that of the good lease", tt.subnet, tt.public, peers, want)
		}
		if tt.refused != "" && (len(rejected) != 1 || !strings.Contains(rejected[0].Err.Error(), tt.refused)) {
			t.Errorf("%s of %s: rejected %v, want %q", tt.subnet, tt.public, rejected, tt.refused)
		}
	}
}

// TestOwnSubnetBesideLinks: no subnet that a node chooses, nor an entry of its own that somebody has written for it, covers a link or holds
// what it needs. The bridge of its own pods is not an obstacle.
func TestOwnSubnetBesideLinks(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	node := Node{Underlay: besides(), Previous: prefixes([]string{"10.3.51.0/24"})}
	node.Underlay.Needs = append(node.Underlay.Needs, Need{Addr: addr("10.3.50.7"), What: "a name server of this host"}) // a pod
	for subnet, fits := range map[string]bool{
		"10.3.2.0/24": true, "10.3.40.0/24": false, "10.3.42.0/24": false, "10.3.43.0/24": false,
		"10.3.50.0/24": true, "10.3.51.0/24": true, "10.3.0.0/17": false, "10.3.70.0/24": true,
	} {
		if err := node.CheckSubnets(prefix(subnet)); (err == nil) != fits {
			t.Errorf("%s: %v, want that it fits: %v", subnet, err, fits)
		}
	}
	node.Previous = nil
	if err := node.CheckSubnets(prefix("10.3.51.0/24")); err == nil || Reason(err) != reasonHoldsUnderlay {
		t.Errorf("a link in a subnet that the node did not have: %v", err)
	}
	for range 1000 {
		p, _, err := Allocate(n, node, nil, rand.IntN)
		if err != nil || node.CheckSubnets(p) != nil || p == prefix("10.3.50.0/24") || prefix("10.3.64.0/18").Overlaps(p) {
			t.Fatalf("chosen %s, %v", p, err)
		}
	}
	// In a network that lies on a bridge there is nothing else.
	if p, _, err := Allocate(network(t, `{"Network":"10.3.64.0/18"}`), node, nil, rand.IntN); err != nil {
		t.Errorf("on a bridge: %s, %v", p, err)
	}
}
