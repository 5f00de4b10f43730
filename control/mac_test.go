package control

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// TestKeepMACs has a node at 192.168.0.2 that was at .1 and before that at .3.
func TestKeepMACs(t *testing.T) {
	n := Node{Former: []netip.Addr{nodeAddr(3)}}
	flannels := encap.MAC{2, 9}
	second := dataplane.NthMAC(nodeAddr(2), 1, 1)
	old := func(m encap.MAC) Lease { return with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = m }) }
	for _, tt := range []struct {
		name   string
		offers encap.MAC
		old    Lease
		want   encap.MAC
	}{
		{"no lease", nodeMAC(2), Lease{}, nodeMAC(2)},
		{"no lease, a flanneld's device", flannels, Lease{}, flannels},
		{"no lease, device of a former address", nodeMAC(3), Lease{}, nodeMAC(2)},
		{"derived from the last address, and offered", nodeMAC(1), old(nodeMAC(1)), nodeMAC(2)},
		{"derived from the last address", nodeMAC(2), old(nodeMAC(1)), nodeMAC(2)},
		{"second one of the last address", nodeMAC(2), old(dataplane.NthMAC(nodeAddr(1), 1, 1)), nodeMAC(2)},
		{"derived from a former address", nodeMAC(2), old(nodeMAC(3)), nodeMAC(2)},
		{"a flanneld's lease", nodeMAC(2), old(flannels), flannels},
		{"a flanneld's lease, device of the last address", nodeMAC(1), old(flannels), flannels},
		{"derived from the last address, a flanneld's device", flannels, old(nodeMAC(1)), flannels},
		{"the second one", nodeMAC(2), old(second), second},
		{"no MAC", nodeMAC(2), old(encap.MAC{}), nodeMAC(2)},
		{"of another VNI", nodeMAC(2), with(old(flannels), func(l *Lease) { l.Backend.VNI = 2 }), nodeMAC(2)},
	} {
		l := with(lease("10.3.1.0/24", 2, 0), func(l *Lease) { l.Backend.MAC = tt.offers })
		want := with(l, func(l *Lease) { l.Backend.MAC = tt.want })
		if d := cmp.Diff(want, n.KeepMACs(l, tt.old), netipTypes); d != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, d)
		}
	}
}

// TestOneMACOfTwoPeers: who has derived the MAC from its own address keeps it, whatever their ages
// are, then who has had it, then the older one. The dataplane that does not need different MACs takes all.
func TestOneMACOfTwoPeers(t *testing.T) {
	at := func(i int, mac encap.MAC, age int64) Lease {
		return with(lease(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, byte(i), 0}), 24).String(), i, age), func(l *Lease) { l.Backend.MAC = mac })
	}
	random := encap.MAC{2, 9}
	for _, tt := range []struct {
		name  string
		first []Lease // seen before
		then  []Lease
		wins  netip.Addr
	}{
		{"the mover is older", nil, []Lease{at(9, nodeMAC(2), 5), at(2, nodeMAC(2), 6)}, nodeAddr(2)},
		{"the mover is younger", nil, []Lease{at(9, nodeMAC(2), 6), at(2, nodeMAC(2), 5)}, nodeAddr(2)},
		{"the mover was there", []Lease{at(9, nodeMAC(2), 5)}, []Lease{at(2, nodeMAC(2), 6)}, nodeAddr(2)},
		{"second MAC", nil, []Lease{at(9, dataplane.NthMAC(nodeAddr(2), 1, 3), 5), at(2, dataplane.NthMAC(nodeAddr(2), 1, 3), 6)}, nodeAddr(2)},
		{"neither derived", nil, []Lease{at(8, random, 5), at(9, random, 6)}, nodeAddr(8)},
		{"neither derived, the younger was there", []Lease{at(9, random, 6)}, []Lease{at(8, random, 5)}, nodeAddr(9)},
	} {
		for _, shared := range []bool{false, true} {
			r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
			r.SharedMACs = shared
			r.Apply(Update{Leases: tt.first})
			r.Peers(newcomer())
			r.Apply(Update{Leases: tt.then})
			for range 2 { // again with what the last call has returned
				peers, rejected := r.Peers(newcomer())
				if shared && (len(peers) != 2 || len(rejected) > 0) {
					t.Errorf("%s: peers %v, rejected %v, want both", tt.name, peers, rejected)
				}
				if !shared && (len(peers) != 1 || peers[0].Addr != tt.wins || len(rejected) != 1 || Reason(rejected[0].Err) != "mac_in_use") {
					t.Errorf("%s: peers %v, rejected %v, want %s", tt.name, peers, rejected, tt.wins)
				}
			}
		}
	}
}

// TestGiveWay: of a node and a peer with one MAC just one takes another, and none but its own ones.
func TestGiveWay(t *testing.T) {
	random := encap.MAC{2, 9}
	for _, tt := range []struct {
		name      string
		self      encap.MAC
		peer      encap.MAC
		peerAge   int64 // that of self is 5
		more      []Lease
		now, late encap.MAC // that self takes; zero: it keeps its own
	}{
		{"another MAC", nodeMAC(1), nodeMAC(2), 6, nil, encap.MAC{}, encap.MAC{}},
		{"self moved here", nodeMAC(2), nodeMAC(2), 6, nil, nodeMAC(1), nodeMAC(1)},
		{"the peer moved away", nodeMAC(1), nodeMAC(1), 4, nil, encap.MAC{}, dataplane.NthMAC(nodeAddr(1), 1, 1)},
		{"neither derived, self older", random, random, 6, nil, encap.MAC{}, nodeMAC(1)},
		{"neither derived, self younger", random, random, 4, nil, nodeMAC(1), nodeMAC(1)},
		{"neither derived, of one age", random, random, 5, nil, encap.MAC{}, nodeMAC(1)},
		{"the next one is in use, too", nodeMAC(2), nodeMAC(2), 6,
			[]Lease{with(lease("10.3.4.0/24", 4, 7), func(l *Lease) { l.Backend.MAC = nodeMAC(1) })},
			dataplane.NthMAC(nodeAddr(1), 1, 1), dataplane.NthMAC(nodeAddr(1), 1, 1)},
	} {
		self := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = tt.self })
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		other := with(lease("10.3.2.0/24", 2, tt.peerAge), func(l *Lease) { l.Backend.MAC = tt.peer })
		r.Apply(Update{Reset: true, Leases: append([]Lease{self, other}, tt.more...)})
		r.Peers(self)
		for _, late := range []bool{false, true} {
			want := map[bool]encap.MAC{false: tt.now, true: tt.late}[late]
			l, to, ok := r.GiveWay(self, late)
			if ok != (want != encap.MAC{}) || ok && (l.Backend.MAC != want || to.VTEP.Addr != nodeAddr(2)) {
				t.Errorf("%s, late %v: %v, MAC %s, want %s", tt.name, late, ok, l.Backend.MAC, want)
			}
		}
	}
}

// TestLateClaims: whoever begins to publish a MAC that is in use costs its owner neither the MAC nor a peer, however old
// his lease is; the one of them that is derived from its own address has it all the same.
func TestLateClaims(t *testing.T) {
	random := encap.MAC{2, 9}
	for _, tt := range []struct {
		name       string
		owner, was encap.MAC // of the node that is copied, and of the one that copies before it does
		own        bool      // the owner is the node itself
		wins       bool      // the one that copies, because the MAC is its by its address
	}{
		{"a derived one", nodeMAC(1), nodeMAC(2), true, false},
		{"that of a flanneld", random, nodeMAC(2), true, false},
		{"by a flanneld", nodeMAC(1), encap.MAC{2, 7}, true, false},
		{"its own one back", nodeMAC(2), encap.MAC{2, 7}, true, true},
		{"a derived one of a peer", nodeMAC(1), nodeMAC(2), false, false},
		{"that of a peer's flanneld", random, nodeMAC(2), false, false},
		{"its own one back from a peer", nodeMAC(2), encap.MAC{2, 7}, false, true},
	} {
		for _, age := range []int64{4, 6} {
			owner := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = tt.owner })
			other := with(lease("10.3.2.0/24", 2, age), func(l *Lease) { l.Backend.MAC = tt.was })
			self := newcomer()
			if tt.own {
				self = owner
			}
			r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
			r.Apply(Update{Reset: true, Leases: []Lease{owner, other}})
			if _, rejected := r.Peers(self); len(rejected) > 0 {
				t.Fatalf("%s: rejected %v before", tt.name, rejected)
			}
			r.Apply(Update{Leases: []Lease{with(other, func(l *Lease) { l.Backend.MAC, l.ModRevision = tt.owner, 9 })}})
			for range 3 {
				peers, rejected := r.Peers(self)
				loser := map[bool]netip.Addr{true: owner.PublicIP, false: other.PublicIP}[tt.wins]
				if !tt.own && (len(peers) != 1 || peers[0].Addr == loser || len(rejected) != 1) {
					t.Errorf("%s, age %d: peers %v, rejected %v, want that %s is refused", tt.name, age, peers, rejected, loser)
				}
				for _, late := range []bool{false, true} {
					if _, _, ok := r.GiveWay(self, late); tt.own && ok != tt.wins {
						t.Errorf("%s, age %d, late %v: gives way: %v, want %v", tt.name, age, late, ok, tt.wins)
					}
				}
			}
		}
	}
}

// TestGiveWayAtLast: with every MAC in use a node keeps the one that it has.
func TestGiveWayAtLast(t *testing.T) {
	self := with(lease("10.3.1.0/24", 1, 5), func(l *Lease) { l.Backend.MAC = nodeMAC(2) })
	leases := []Lease{self, lease("10.3.2.0/24", 2, 4)}
	for n := range dataplane.MACs {
		leases = append(leases, with(lease(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, byte(10 + n), 0}), 24).String(), 10+n, 9),
			func(l *Lease) { l.Backend.MAC = dataplane.NthMAC(nodeAddr(1), 1, n) }))
	}
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	r.Apply(Update{Reset: true, Leases: leases})
	r.Peers(self)
	if l, _, ok := r.GiveWay(self, true); ok || l != self {
		t.Errorf("takes %s, %v", l.Backend.MAC, ok)
	}
}
