package carrier

import (
	"net/netip"
	"sync"
	"testing"
)

// TestPeerAndItsEntriesAgree has two find out at the same time what the path to a peer takes, while a Sync has one more lease of it: all
// entries have what the peer has.
func TestPeerAndItsEntriesAgree(t *testing.T) {
	const leases, rounds = 300, 2000
	p := NewPeer(netip.MustParseAddrPort("192.0.2.1:8472"))
	entries := make([]Entry, leases+rounds)
	for i := range leases {
		p.Adopt(&entries[i], i == 0)
	}
	for round := range rounds {
		all := entries[:leases+round+1]
		var wg sync.WaitGroup
		wg.Go(func() { p.SetMTU(1200 + round) })
		wg.Go(func() { p.SetMTU(0) })
		wg.Go(func() { p.Adopt(&all[len(all)-1], false) })
		wg.Wait()
		for i := range all {
			if got := all[i].MTU(); got != p.MTU() {
				t.Fatalf("round %d: entry %d has the MTU %d, the peer %d", round, i, got, p.MTU())
			}
		}
	}
}
