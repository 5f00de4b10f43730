package control

import (
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestOlderLeasesThatChange: whatever an older lease begins to say of its node, a younger one that was used before goes on as it was.
func TestOlderLeasesThatChange(t *testing.T) {
	natted := addr("172.31.0.2")
	victim := with(lease("10.3.2.0/24", 2, 5), func(l *Lease) { l.Facts = NodeFacts{V: 1, Source: natted} })
	liar := with(lease("10.3.9.0/24", 9, 1), func(l *Lease) { l.Facts.V = 1 })
	for _, tt := range []struct {
		name     string
		underlay Underlay
		lie      func(*Lease)
		fresh    bool // a RIB that has not seen what was before judges alike
		reason   string
	}{
		{"the MAC of the victim", Underlay{}, func(l *Lease) { l.Backend.MAC = nodeMAC(2) }, true, "mac_in_use"},
		{"an address of the victim's subnet", Underlay{}, func(l *Lease) { l.PublicIP = addr("10.3.2.7") }, true, reasonInOverlay},
		{"the same in a network over the underlay", Underlay{OnLink: prefixes([]string{"10.3.64.0/18"})}, func(l *Lease) { l.PublicIP = addr("10.3.2.7") }, false, reasonInOverlay},
		{"the address of the victim", Underlay{}, func(l *Lease) { l.PublicIP = nodeAddr(2) }, true, ""}, // its own subnet is behind the victim then
		{"the source of the victim's packets", Underlay{}, func(l *Lease) { l.Facts.Source = natted }, false, "source_in_use"},
		{"that source as its address", Underlay{}, func(l *Lease) { l.PublicIP = natted }, false, "public_ip_in_use"},
	} {
		r := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		r.Underlay = tt.underlay
		r.Apply(Update{Reset: true, Leases: []Lease{liar, victim}})
		is := func(p dataplane.Peer) bool {
			return p.VTEP == victim.VTEP(false) && p.Source == natted && slices.Contains(p.Subnets, victim.Subnet)
		}
		if peers, _ := r.Peers(newcomer()); !slices.ContainsFunc(peers, is) {
			t.Fatalf("%s: peers %v before", tt.name, peers)
		}
		lies := with(liar, func(l *Lease) { l.ModRevision = 9 })
		tt.lie(&lies)
		r.Apply(Update{Leases: []Lease{lies}})
		for range 3 {
			peers, rejected := r.Peers(newcomer())
			if !slices.ContainsFunc(peers, is) {
				t.Errorf("%s: the victim is not used any more: peers %v, rejected %v, %v", tt.name, peers, rejected, r.Limits())
			}
			all := append(slices.Clone(rejected), r.Limits()...)
			if tt.reason != "" && (len(all) != 1 || Reason(all[0].Err) != tt.reason || all[0].Node != lies.Identity()) {
				t.Errorf("%s: rejected %v, want %s", tt.name, all, tt.reason)
			}
		}
		r.Apply(Update{Deleted: []string{victim.Key()}})
		if peers, _ := r.Peers(newcomer()); !slices.ContainsFunc(peers, func(p dataplane.Peer) bool { return p.Addr == lies.PublicIP }) {
			t.Errorf("%s: without the victim it is not used: peers %v", tt.name, peers)
		}
		fresh := NewRIB(network(t, `{"Network":"10.3.0.0/16"}`))
		fresh.Underlay = tt.underlay
		fresh.Apply(Update{Reset: true, Leases: []Lease{lies, victim}})
		if peers, _ := fresh.Peers(newcomer()); tt.fresh && !slices.ContainsFunc(peers, func(p dataplane.Peer) bool { return slices.Contains(p.Subnets, victim.Subnet) }) {
			t.Errorf("%s: a RIB that begins now does not use the victim: peers %v", tt.name, peers)
		}
	}
}
