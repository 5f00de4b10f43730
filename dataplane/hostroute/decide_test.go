package hostroute

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.AllowUnexported(route{}, hop{}, op{}),
	cmpopts.EquateEmpty(),
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, prefix(s))
	}
	return ps
}

func set(ss ...string) map[netip.Prefix]bool {
	m := map[netip.Prefix]bool{}
	for _, s := range ss {
		m[prefix(s)] = true
	}
	return m
}

func newPeer(address string, subnets ...string) dataplane.Peer {
	a := addr(address)
	return dataplane.Peer{VTEP: dataplane.VTEP{Addr: a, MAC: encap.MAC(dataplane.MAC(a, 1)), VNI: 1}, Subnets: prefixes(subnets...)}
}

// wanted is a host's state with its own subnets 10.5.1.0/24 and fd00:0:0:1::/64.
func wanted(peers ...dataplane.Peer) dataplane.Wanted {
	return dataplane.Wanted{
		Subnets:  prefixes("10.5.1.0/24", "fd00:0:0:1::/64"),
		Networks: prefixes("10.5.0.0/16", "fd00::/48"),
		MTU:      1400,
		Peers:    peers,
	}
}

func TestDecide(t *testing.T) {
	link := func(a netip.Addr) int { // 192.0.2.0/24 and 2001:db8::/32 are on link 2, and so are hostile addresses
		for _, p := range prefixes("192.0.2.0/24", "2001:db8::/32", "10.5.0.0/16", "127.0.0.0/8", "224.0.0.0/4", "fe80::/10") {
			if p.Contains(a) {
				return 2
			}
		}
		return 0
	}
	for _, tc := range []struct {
		name    string
		peers   []dataplane.Peer
		refused map[netip.Prefix]bool
		want    map[netip.Prefix]hop
		parts   []string // of each peer that comes back: d or e, and its subnets
	}{
		{name: "nobody"},
		{name: "on-link", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.2.0/24", "10.5.3.0/24")},
			want:  map[netip.Prefix]hop{prefix("10.5.2.0/24"): {addr("192.0.2.3"), 2}, prefix("10.5.3.0/24"): {addr("192.0.2.3"), 2}},
			parts: []string{"d [10.5.2.0/24 10.5.3.0/24]"}},
		{name: "behind a router", peers: []dataplane.Peer{newPeer("198.51.100.3", "10.5.2.0/24")}, parts: []string{"e [10.5.2.0/24]"}},
		{name: "IPv6", peers: []dataplane.Peer{newPeer("2001:db8::3", "fd00:0:0:2::/64")},
			want: map[netip.Prefix]hop{prefix("fd00:0:0:2::/64"): {addr("2001:db8::3"), 2}}, parts: []string{"d [fd00:0:0:2::/64]"}},
		{name: "both families", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.2.0/24", "fd00:0:0:2::/64")},
			want: map[netip.Prefix]hop{prefix("10.5.2.0/24"): {addr("192.0.2.3"), 2}}, parts: []string{"d [10.5.2.0/24]", "e [fd00:0:0:2::/64]"}},
		{name: "one subnet refused", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.2.0/24", "10.5.3.0/24")}, refused: set("10.5.2.0/24"),
			want: map[netip.Prefix]hop{prefix("10.5.3.0/24"): {addr("192.0.2.3"), 2}}, parts: []string{"d [10.5.3.0/24]", "e [10.5.2.0/24]"}},
		{name: "two peers of one subnet", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("192.0.2.4", "10.5.2.0/24")},
			want: map[netip.Prefix]hop{prefix("10.5.2.0/24"): {addr("192.0.2.3"), 2}}, parts: []string{"d [10.5.2.0/24]", "e [10.5.2.0/24]"}},
		{name: "address in the overlay", peers: []dataplane.Peer{newPeer("10.5.2.7", "10.5.2.0/24")}, parts: []string{"e [10.5.2.0/24]"}},
		{name: "loopback", peers: []dataplane.Peer{newPeer("127.0.0.9", "10.5.2.0/24")}, parts: []string{"e [10.5.2.0/24]"}},
		{name: "multicast", peers: []dataplane.Peer{newPeer("239.1.1.1", "10.5.2.0/24")}, parts: []string{"e [10.5.2.0/24]"}},
		{name: "link-local", peers: []dataplane.Peer{newPeer("fe80::3", "fd00:0:0:2::/64")}, parts: []string{"e [fd00:0:0:2::/64]"}},
		{name: "own subnet", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.1.0/25")}, parts: []string{"e [10.5.1.0/25]"}},
		{name: "outside the network", peers: []dataplane.Peer{newPeer("192.0.2.3", "0.0.0.0/0", "8.8.8.0/24")}, parts: []string{"e [0.0.0.0/0 8.8.8.0/24]"}},
		{name: "not masked", peers: []dataplane.Peer{newPeer("192.0.2.3", "10.5.2.1/24")}, parts: []string{"e [10.5.2.1/24]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := decide(wanted(tc.peers...), link, tc.refused)
			if diff := cmp.Diff(tc.want, d.direct, byValue); diff != "" {
				t.Error(diff)
			}
			var parts []string
			for _, p := range d.peers {
				part := "e "
				if p.Direct {
					part = "d "
				}
				text := "["
				for i, s := range p.Subnets {
					if i > 0 {
						text += " "
					}
					text += s.String()
				}
				parts = append(parts, part+text+"]")
			}
			if diff := cmp.Diff(tc.parts, parts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecideWithoutNetworks(t *testing.T) {
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	w.Networks = nil
	if d := decide(w, func(netip.Addr) int { return 2 }, nil); len(d.direct) != 0 {
		t.Errorf("got %v", d.direct)
	}
}
