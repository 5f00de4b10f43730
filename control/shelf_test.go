package control

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
)

// TestShelfAgainstReference: a RIB that judges only what may have changed uses and refuses what one does that judges everything each
// time, whatever comes and goes, and whatever this host is.
func TestShelfAgainstReference(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	random := func(revision int64) Lease {
		a := netip.AddrFrom4([4]byte{10, byte(3 + rnd.IntN(12)/11), byte(rnd.IntN(6)), byte(rnd.IntN(256))})
		p, _ := a.Prefix(22 + rnd.IntN(5))
		l := lease(p.String(), 2+rnd.IntN(20), revision)
		switch rnd.IntN(6) {
		case 0:
			l.Backend.MAC = nodeMAC(1 + rnd.IntN(20))
		case 1:
			l.BackendType = "host-gw"
		case 2:
			l.IPv6Subnet = prefix(fmt.Sprintf("fd10:6:0:%d::/64", rnd.IntN(4)))
		case 3:
			l.PublicIP = netip.AddrFrom4([4]byte{10, 3, byte(rnd.IntN(6)), 7})
		}
		l.ModRevision = revision
		return l
	}
	for round := range 60 {
		fast, slow := NewRIB(n), NewRIB(n)
		fast.Lengths = &Lengths{}
		fast.Lengths.Add(prefix("10.3.0.0/24"), prefix("10.3.0.0/25"), prefix("fd10:6::/64"))
		slow.Lengths = fast.Lengths
		self := newcomer()
		var keys []string
		revision := int64(0)
		for step := range 80 {
			var u Update
			switch revision++; {
			case len(keys) > 0 && rnd.IntN(4) == 0:
				i := rnd.IntN(len(keys))
				u.Deleted = keys[i : i+1]
			case len(keys) > 0 && rnd.IntN(12) == 0:
				u.Bad = []BadLease{{Key: keys[rnd.IntN(len(keys))]}}
			case rnd.IntN(40) == 0:
				u.Reset = true
				for _, rec := range slow.leases {
					if rnd.IntN(8) > 0 {
						u.Leases = append(u.Leases, *rec.Lease)
					}
				}
			default:
				l := random(revision - int64(rnd.IntN(3)))
				keys = append(keys, l.Key())
				u.Leases = []Lease{l}
			}
			if rnd.IntN(30) == 0 {
				self = with(lease(fmt.Sprintf("10.3.%d.0/24", rnd.IntN(6)), 1, revision), func(l *Lease) { l.Backend.MAC = nodeMAC(1 + rnd.IntN(20)) })
			}
			for _, r := range []*RIB{fast, slow} {
				r.Apply(u)
				r.Resolve()
				r.DropKept() // what is refused is not kept, if it was known to stay so
				r.Settle()
			}
			slow.emptyShelf()
			wantPeers, wantRejected := slow.Peers(self)
			peers, rejected := fast.Peers(self)
			if d := cmp.Diff(wantPeers, peers, netipTypes); d != "" {
				t.Fatalf("seed %d, round %d, step %d: peers (-want +got):\n%s", seed, round, step, d)
			}
			text := func(all []Rejection) (s []string) {
				for _, x := range all {
					s = append(s, fmt.Sprint(x.Key, " ", x.Subnet, " ", Reason(x.Err)))
				}
				return s
			}
			if d := cmp.Diff(text(wantRejected), text(rejected)); d != "" || fast.Refused() != slow.Refused() || len(fast.Rivals()) != len(slow.Rivals()) {
				t.Fatalf("seed %d, round %d, step %d: refused %d and %d, rivals %d and %d (-want +got):\n%s", seed, round, step, slow.Refused(), fast.Refused(),
					len(slow.Rivals()), len(fast.Rivals()), d)
			}
			if len(fast.live) > len(slow.leases) || fast.Refused() < fast.shelf.count {
				t.Fatalf("seed %d: %d of %d leases are judged", seed, len(fast.live), len(fast.leases))
			}
		}
	}
}

// manyRefused returns leases of each kind that somebody can write without end.
func manyRefused(kind string, n int) (leases []Lease) {
	for i := range n {
		public := netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
		v6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x10, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 127).Masked()
		l := Lease{Subnet: prefix("10.3.2.0/24"), PublicIP: public, BackendType: BackendVXLAN, Backend: VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(100 + i)}
		switch kind {
		case "outside of the network":
			l.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 31).Masked()
		case "on a subnet in use":
			l.IPv6Subnet = v6
		case "on a subnet in use, with the MAC of this node":
			l.IPv6Subnet, l.Subnet, l.Backend.MAC = v6, prefix("10.3.7.0/24"), nodeMAC(1)
		case "reservations":
			l.IPv6Subnet, l.Backend, l.BackendType, l.Reserved = v6, VTEPData{}, "", true
		}
		leases = append(leases, l)
	}
	return leases
}

// TestRefusedCostNothing: a change of one lease judges none of those that stay refused.
func TestRefusedCostNothing(t *testing.T) {
	for _, kind := range []string{"outside of the network", "on a subnet in use", "on a subnet in use, with the MAC of this node", "reservations"} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		self, good, other := lease("10.3.1.0/24", 1, 1), lease("10.3.2.0/24", 2, 2), lease("10.3.3.0/24", 3, 3)
		r.Apply(Update{Reset: true, Leases: append(manyRefused(kind, 10_000), self, good)})
		r.Peers(self)
		r.Apply(Update{Leases: []Lease{other}})
		if len(r.live) > 10 {
			t.Errorf("%s: %d leases are to be judged", kind, len(r.live))
		}
		if peers, _ := r.Peers(self); len(peers) != 2 {
			t.Errorf("%s: %d peers", kind, len(peers))
		}
		if n := len(slices.Collect(r.Leases())); n > 10 {
			t.Errorf("%s: %d leases are to be remembered", kind, n)
		}
		if kind == "on a subnet in use" {
			before := r.Refused()
			r.Apply(Update{Deleted: []string{good.Key()}})
			r.Resolve()
			if peers, _ := r.Peers(self); len(peers) != 2 || r.Refused() != before-1 || !slices.ContainsFunc(peers, func(p dataplane.Peer) bool { return slices.Contains(p.Subnets, good.Subnet) }) {
				t.Errorf("%s: without its lease %d peers, %d refused, want the oldest of the others", kind, len(peers), r.Refused())
			}
		}
	}
}

// TestRefusedAreNoLoss: however many leases are refused, those that are used are kept if the store loses most of them.
func TestRefusedAreNoLoss(t *testing.T) {
	r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	self := newcomer()
	a, b, c := lease("10.3.2.0/24", 2, 2), lease("10.3.3.0/24", 3, 3), lease("10.3.4.0/24", 4, 4)
	junk := manyRefused("outside of the network", 100)
	r.Apply(Update{Reset: true, Leases: append(slices.Clone(junk), a, b, c)})
	r.Peers(self)
	r.Apply(Update{Reset: true, Leases: append(slices.Clone(junk), a)})
	if peers, _ := r.Peers(self); len(peers) != 3 || r.Kept() != 2 {
		t.Errorf("%d peers, %d kept", len(peers), r.Kept())
	}
}

// TestIncumbents: who had what before a restart keeps it, whatever an older lease has begun to say since.
func TestIncumbents(t *testing.T) {
	mac := nodeMAC(77) // of a flanneld's device
	victim := with(lease("10.3.2.0/24", 2, 5), func(l *Lease) { l.Backend.MAC = mac })
	liar := lease("10.3.9.0/24", 9, 1)
	lies := with(liar, func(l *Lease) { l.Backend.MAC = mac })
	before := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	before.Apply(Update{Reset: true, Leases: []Lease{victim, liar}})
	before.Peers(newcomer())
	before.Apply(Update{Leases: []Lease{lies}})
	var known Incumbents
	for line := range before.Incumbents().Lines() {
		known.Parse(line)
	}
	known.Parse("x y")
	known.Parse("192.168.0.1")
	after := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	after.SetIncumbents(known)
	after.Apply(Update{Reset: true, Leases: []Lease{lies, victim}})
	if peers, _ := after.Peers(newcomer()); len(peers) != 1 || peers[0].VTEP != victim.VTEP(false) {
		t.Errorf("peers %v, want the victim", peers)
	}
	// So does this node.
	own := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	own.Apply(Update{Reset: true, Leases: []Lease{victim, liar}})
	own.Peers(victim)
	known = Incumbents{}
	for line := range own.Incumbents().Lines() {
		known.Parse(line)
	}
	again := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
	again.SetIncumbents(known)
	again.Apply(Update{Reset: true, Leases: []Lease{lies, victim}})
	again.Peers(victim)
	if l, _, ok := again.GiveWay(victim, true); ok || l != victim {
		t.Errorf("gives way after a restart: %s", l.Backend.MAC)
	}
}

// BenchmarkRefused is one change beside 100 000 leases that are refused.
func BenchmarkRefused(b *testing.B) {
	for _, kind := range []string{"outside of the network", "on a subnet in use"} {
		b.Run(kind, func(b *testing.B) {
			r := NewRIB(network(b, `{"Network":"10.3.0.0/16"}`))
			self, good := lease("10.3.1.0/24", 1, 1), lease("10.3.2.0/24", 2, 2)
			r.Apply(Update{Reset: true, Leases: append(manyRefused(kind, 100_000), self, good)})
			r.Peers(self)
			for i := 0; b.Loop(); i++ {
				r.Apply(Update{Leases: []Lease{with(lease("10.3.3.0/24", 3+i%2, 3), func(l *Lease) { l.ModRevision = int64(i) })}})
				r.Peers(self)
			}
		})
	}
}
