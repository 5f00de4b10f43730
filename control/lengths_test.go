package control

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestLengths: two leases of half of the network are used by nobody and keep nobody from a subnet, unless an older config had
// that length: a lease of that stays what it was.
func TestLengths(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	halves := []Lease{lease("10.3.0.0/17", 8, 1), lease("10.3.128.0/17", 9, 2)}
	good := lease("10.3.7.0/24", 2, 3)
	for _, tt := range []struct {
		known   *Lengths
		peers   []netip.Addr
		refused string
		free    bool
	}{
		{nil, []netip.Addr{nodeAddr(8), nodeAddr(9)}, "overlaps_older", false},
		{new(Lengths), []netip.Addr{nodeAddr(2)}, "subnet_length", true},
		{new(ParseLengths("0.0.0.0/17 ::/64 x")), []netip.Addr{nodeAddr(8), nodeAddr(9)}, "overlaps_older", false},
	} {
		r := NewRIB(n)
		r.Lengths = tt.known
		r.Apply(Update{Reset: true, Leases: append([]Lease{good}, halves...)})
		peers, rejected := r.Peers(newcomer())
		var got []netip.Addr
		for _, p := range peers {
			got = append(got, p.Addr)
		}
		if !slices.Equal(got, tt.peers) || len(rejected) != 3-len(peers) || Reason(rejected[0].Err) != tt.refused {
			t.Errorf("lengths %v: peers %v, rejected %v, want %v and %s", tt.known, got, rejected, tt.peers, tt.refused)
		}
		var taken []netip.Prefix
		for _, l := range append(halves, good) {
			taken = AppendTaken(taken, n, l.Key(), l.Value())
		}
		if held := n.Rightful(AppendHeld(nil, n, halves[0].Key(), halves[0].Value()), tt.known); (len(held) == 0) != tt.free {
			t.Errorf("lengths %v: held %v", tt.known, held)
		}
		node := Node{}
		taken, node.Avoid = n.Oversized(taken, tt.known)
		p, _, err := Allocate(n, node, taken, rand.IntN)
		if (err == nil) != tt.free || p == good.Subnet {
			t.Errorf("lengths %v: a new node gets %v, %v", tt.known, p, err)
		}
	}
	// One half leaves room elsewhere: it may be of a config that is not known here.
	for range 100 {
		taken, avoid := n.Oversized([]netip.Prefix{halves[0].Subnet, good.Subnet}, new(Lengths))
		if p, _, err := Allocate(n, Node{Avoid: avoid}, taken, rand.IntN); err != nil || halves[0].Subnet.Overlaps(p) {
			t.Fatalf("a new node gets %v, %v", p, err)
		}
	}
}

func TestLengthsAsText(t *testing.T) {
	var l Lengths
	l.AddNetwork(network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`))
	l.AddNetwork(Network{EnableIPv4: true, Network: prefix("10.3.0.0/16")}) // as of Kubernetes
	l.Add(prefix("10.3.0.0/26"), netip.Prefix{})
	if text := l.String(); text != "0.0.0.0/24 0.0.0.0/26 ::/64" || ParseLengths(text) != l {
		t.Errorf("got %q, read again %v", text, ParseLengths(text))
	}
}
