package control

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestBadEntriesAreBounded: those that are named are bounded, all are counted, and a key that is mended or deleted counts no more.
func TestBadEntriesAreBounded(t *testing.T) {
	t.Parallel()
	r := NewRIB(Network{})
	wrong := errors.New("wrong")
	const many = 10 * maxBad
	var u, gone Update
	for i := range many {
		key := fmt.Sprint("junk-", i)
		u.Bad = append(u.Bad, BadLease{Key: key, Err: wrong})
		gone.Deleted = append(gone.Deleted, key)
	}
	for range 2 { // and again, written over
		r.Apply(u)
		if _, bad := r.Len(); bad != many || len(r.Bad()) != maxBad {
			t.Errorf("%d entries, %d named, want %d and %d", bad, len(r.Bad()), many, maxBad)
		}
	}
	gone.Deleted = gone.Deleted[:many-1]
	r.Apply(gone)
	if _, bad := r.Len(); bad != 1 || len(r.Bad()) > 1 {
		t.Errorf("%d entries, %d named, want 1", bad, len(r.Bad()))
	}
	r.Apply(Update{Reset: true, Bad: u.Bad[many-1:]})
	if _, bad := r.Len(); bad != 1 || len(r.Bad()) != 1 {
		t.Errorf("listed again: %d entries, %d named, want 1", bad, len(r.Bad()))
	}
}

// TestRefusedLeasesAreBounded: those that are named are bounded, and the oldest; all are counted.
func TestRefusedLeasesAreBounded(t *testing.T) {
	t.Parallel()
	n, err := ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r := NewRIB(n)
	const many = 3 * maxRejected
	u := Update{Reset: true}
	for i := range many {
		public := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		u.Leases = append(u.Leases, Lease{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24), PublicIP: public,
			BackendType: BackendVXLAN, Backend: VTEPData{VNI: 1, MAC: dataplane.MAC(public, 1)}, CreateRevision: int64(many - i)})
	}
	r.Apply(u)
	_, rejected := r.Peers(Lease{PublicIP: netip.MustParseAddr("192.0.2.1")})
	if len(rejected) != maxRejected || r.Refused() != many {
		t.Fatalf("%d named, %d counted", len(rejected), r.Refused())
	}
	oldest := map[string]bool{}
	for _, l := range u.Leases[many-maxRejected:] {
		oldest[l.Key()] = true
	}
	for _, x := range rejected {
		if !oldest[x.Key] {
			t.Fatalf("%s is named, and older ones are not", x.Key)
		}
	}
}

// TestUnreadableEntriesAreBounded: of many unreadable entries few are remembered, whether they come at once or one by one, and those that stand in the
// place of a lease always are.
func TestUnreadableEntriesAreBounded(t *testing.T) {
	t.Parallel()
	r := NewRIB(Network{})
	l := Lease{Subnet: netip.MustParsePrefix("10.5.7.0/24"), PublicIP: netip.MustParseAddr("192.0.2.7")}
	r.Apply(Update{Reset: true, Leases: []Lease{l}})
	wrong := errors.New("wrong")
	for i := range 2 * MaxUnreadable {
		r.Apply(Update{Bad: []BadLease{{Key: fmt.Sprint("junk-", i), Err: wrong}}})
	}
	r.Apply(Update{Bad: []BadLease{{Key: l.Key(), Err: wrong}}})
	if leases, bad := r.Len(); leases != 1 || bad != MaxUnreadable+1 || r.Lacks(l) || r.Holds(l) {
		t.Errorf("%d leases, %d entries, lacks %v, holds %v", leases, bad, r.Lacks(l), r.Holds(l))
	}
}
