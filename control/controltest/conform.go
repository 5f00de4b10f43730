package controltest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// config is the network of most cases: 255 subnets to lease.
const config = `{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":7}}`

// deadline bounds every wait for something that must happen.
const deadline = 10 * time.Second

// Conform checks everything that package control relies on in a Store. open
// returns a fresh, empty Harness and closes it when its test ends.
func Conform(t *testing.T, open func(tb testing.TB) Harness) {
	cases := []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"NetworkMissing", networkMissing},
		{"NetworkBad", networkBad},
		{"NetworkGood", networkGood},
		{"AcquireFirst", acquireFirst},
		{"AcquireWithoutNetwork", acquireWithoutNetwork},
		{"AcquireResumesByPublicIP", acquireResumesByPublicIP},
		{"AcquireResumesPrevious", acquireResumesPrevious},
		{"AcquirePreviousTaken", acquirePreviousTaken},
		{"AcquirePreviousIncompatible", acquirePreviousIncompatible},
		{"AcquireReplacesIncompatible", acquireReplacesIncompatible},
		{"AcquireAroundOtherLengths", acquireAroundOtherLengths},
		{"AcquireBesideWideJunk", acquireBesideWideJunk},
		{"AcquireBesideUnderlay", acquireBesideUnderlay},
		{"AcquireWithinMinAndMax", acquireWithinMinAndMax},
		{"AcquireExhausted", acquireExhausted},
		{"AcquireTaken", acquireTaken},
		{"AcquireConcurrently", acquireConcurrently},
		{"AcquireTwoFamilies", acquireTwoFamilies},
		{"AcquireFamilies", acquireFamilies},
		{"AcquireWithoutVTEP", acquireWithoutVTEP},
		{"AcquireIPv6Nodes", acquireIPv6Nodes},
		{"AcquireTakenByIPv6", acquireTakenByIPv6},
		{"AcquireChangedFamilies", acquireChangedFamilies},
		{"AcquireConcurrentlyTwoFamilies", acquireConcurrentlyTwoFamilies},
		{"AcquireAfterMove", acquireAfterMove},
		{"AcquireAfterMoveAndRenew", acquireAfterMoveAndRenew},
		{"AcquireAfterMoveIsOneChange", acquireAfterMoveIsOneChange},
		{"AcquireAfterExchange", acquireAfterExchange},
		{"AcquireAfterMoveTwoFamilies", acquireAfterMoveTwoFamilies},
		{"AcquireAfterRotation", acquireAfterRotation},
		{"AcquireLeftAddress", acquireLeftAddress},
		{"RenewWithAnotherMAC", renewWithAnotherMAC},
		{"RenewExtends", renewExtends},
		{"RenewAfterExpiry", renewAfterExpiry},
		{"RenewAfterDeletion", renewAfterDeletion},
		{"RenewAfterDeletionBesideWideJunk", renewAfterDeletionBesideWideJunk},
		{"RenewAfterDeletionBesideOverlaps", renewAfterDeletionBesideOverlaps},
		{"BesideOtherLengths", besideOtherLengths},
		{"RenewAfterTakeover", renewAfterTakeover},
		{"RenewAfterOverwrite", renewAfterOverwrite},
		{"RenewAfterJunk", renewAfterJunk},
		{"ReleaseAndAgain", releaseAndAgain},
		{"ReleaseAfterTakeover", releaseAfterTakeover},
		{"ReserveForOther", reserveForOther},
		{"ReserveLife", reserveLife},
		{"ReserveLive", reserveLive},
		{"ReserveBesideLease", reserveBesideLease},
		{"ReserveFamilies", reserveFamilies},
		{"WatchFirstIsReset", watchFirstIsReset},
		{"WatchChanges", watchChanges},
		{"WatchOwnLease", watchOwnLease},
		{"WatchJunk", watchJunk},
		{"WatchManyAtOnce", watchManyAtOnce},
		{"WatchSlowReceiver", watchSlowReceiver},
		{"WatchCancel", watchCancel},
		{"WatchAcrossGap", watchAcrossGap},
		{"WatchAcrossCompaction", watchAcrossCompaction},
		{"CallsObeyContext", callsObeyContext},
		{"OptionalInterfaces", optionalInterfaces},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// node makes the i-th node and the VTEPs that it publishes.
func node(i int) (control.Node, []dataplane.VTEP) {
	n := control.Node{ID: fmt.Sprintf("id-%d", i), Name: fmt.Sprintf("host-%d", i),
		PublicIP:   netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}),
		PublicIPv6: netip.AddrFrom16([16]byte{0xfd, 0x99, 14: byte(i >> 8), 15: byte(i)})}
	return n, []dataplane.VTEP{
		{Addr: n.PublicIP, MAC: dataplane.MAC(n.PublicIP, 7), VNI: 7},
		{Addr: n.PublicIPv6, MAC: dataplane.MAC(n.PublicIPv6, 7), VNI: 7},
	}
}

// foreign is the value of a lease that flanneld on the i-th node would write, whose
// MACs are random.
func foreign(i int) []byte {
	n, _ := node(i)
	return value(n.PublicIP, encap.MAC{0x0e, 0x2a, 0xf1, 0, byte(i >> 8), byte(i)})
}

// value is the value of an IPv4 lease.
func value(publicIP netip.Addr, mac encap.MAC) []byte {
	return control.Lease{Subnet: netip.MustParsePrefix("10.3.0.0/24"), PublicIP: publicIP, BackendType: "vxlan",
		Backend: control.VTEPData{VNI: 7, MAC: mac}}.Value()
}

// acquire gets a lease for the i-th node on a connection of its own.
func acquire(t *testing.T, h Harness, i int, previous ...netip.Prefix) (control.Store, control.Lease) {
	t.Helper()
	s := h.Open(t)
	n, vteps := node(i)
	n.Previous = previous
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatalf("acquire for %s: %v", n.Name, err)
	}
	return s, l
}

// checkStored fails unless the store has l, byte for byte as flannel writes it.
func checkStored(t *testing.T, h Harness, l control.Lease) {
	t.Helper()
	if got, ok := h.GetRaw(t, l.Key()); !ok || string(got) != string(l.Value()) {
		t.Errorf("entry %s is %q, want %q", l.Key(), got, l.Value())
	}
}

// view follows a Watch and knows what its updates so far add up to.
type view struct {
	updates <-chan control.Update
	leases  map[string]control.Lease
	bad     map[string]error
	deleted map[string]bool
	resets  int
}

// watch begins a Watch that ends with the test.
func watch(t *testing.T, s control.Store) *view {
	t.Helper()
	return watchContext(t.Context(), s)
}

func watchContext(ctx context.Context, s control.Store) *view {
	return &view{updates: s.Watch(ctx), leases: map[string]control.Lease{}, bad: map[string]error{}, deleted: map[string]bool{}}
}

// until takes updates until ok holds.
func (v *view) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	for !ok() {
		select {
		case u, open := <-v.updates:
			if !open {
				t.Fatalf("waiting for %s: the watch has ended", what)
			}
			v.apply(t, u)
		case <-timeout.C:
			t.Fatalf("waiting for %s: leases %v, bad %v, deleted %v, resets %d", what, v.leases, v.bad, v.deleted, v.resets)
		}
	}
}

func (v *view) apply(t *testing.T, u control.Update) {
	t.Helper()
	if v.resets == 0 && !u.Reset {
		t.Fatalf("the first update is no Reset: %+v", u)
	}
	if u.Reset {
		v.resets++
		v.leases, v.bad = map[string]control.Lease{}, map[string]error{}
		if len(u.Deleted) > 0 {
			t.Errorf("a Reset with Deleted %v", u.Deleted)
		}
	}
	seen := map[string]bool{}
	once := func(key string) {
		if seen[key] {
			t.Errorf("%s is in one update twice: %+v", key, u)
		}
		seen[key] = true
		delete(v.leases, key)
		delete(v.bad, key)
	}
	for _, l := range u.Leases {
		once(l.Key())
		v.leases[l.Key()] = l
		if l.CreateRevision == 0 || l.ModRevision < l.CreateRevision {
			t.Errorf("%s has revisions %d, %d", l.Key(), l.CreateRevision, l.ModRevision)
		}
	}
	for _, b := range u.Bad {
		once(b.Key)
		v.bad[b.Key] = b.Err
		if b.Err == nil {
			t.Errorf("bad %q without an error", b.Key)
		}
	}
	for _, key := range u.Deleted {
		once(key)
		v.deleted[key] = true
	}
}

// sees waits until the watch shows a lease with this key and value.
func (v *view) sees(t *testing.T, key string, value []byte) {
	t.Helper()
	v.until(t, "lease "+key, func() bool {
		l, ok := v.leases[key]
		return ok && string(l.Value()) == string(value)
	})
}
