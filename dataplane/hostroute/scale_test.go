package hostroute

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// manyPeers returns n peers with one subnet each, on-link or behind the router.
func manyPeers(n int, onlink bool) []dataplane.Peer {
	peers := make([]dataplane.Peer, n)
	for i := range peers {
		a := netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
		if onlink {
			a = netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
		}
		peers[i] = newPeer(a.String(), fmt.Sprintf("10.%d.%d.%d/26", 6+i>>10, i>>2&0xff, i&3<<6))
	}
	return peers
}

// A host with as many peers as issue 4 asks for is made right in time, and one more
// peer does not mean to ask the kernel about all of them again.
func TestSyncOfManyPeersIsFast(t *testing.T) {
	const peers, maxCold, maxMore = 5000, 2 * time.Second, 100 * time.Millisecond
	for _, onlink := range []bool{true, false} {
		var cold, more time.Duration
		for range 5 { // the machine may be busy: processor time counts, and the best of it
			hosts, _ := newHosts(t, 1)
			h := hosts[0]
			h.Run("ip", "addr", "add", "172.16.255.254/12", "dev", "eth0")
			h.open()
			w := dataplane.Wanted{Subnets: prefixes("10.5.1.0/24"), Networks: prefixes("10.0.0.0/8"), Peers: manyPeers(peers, onlink)}
			timed := func(w dataplane.Wanted) time.Duration {
				var got dataplane.Wanted
				took := netnstest.CPUTime(t, func() { got = h.sync(w) })
				if directs(got) != len(w.Peers) && onlink || directs(got) != 0 && !onlink {
					t.Fatalf("%d of %d peers are direct", directs(got), len(w.Peers))
				}
				return took
			}
			cold = timed(w)
			h.run(nil)
			h.awaitQuiet()
			w.Peers = manyPeers(peers+1, onlink)
			more = timed(w)
			t.Logf("%d peers, on-link %v: cold %v, one more %v", peers, onlink, cold, more)
			if cold <= maxCold && more <= maxMore {
				break
			}
		}
		if cold > maxCold || more > maxMore {
			t.Errorf("on-link %v: cold %v, one more %v; want %v and %v at most", onlink, cold, more, maxCold, maxMore)
		}
	}
}

// Without host routes, as by default, a Sync costs nothing, however many peers there are.
func TestSyncWithoutHostRoutesCostsNothing(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	h.cfg.Direct = false
	h.open()
	w := dataplane.Wanted{Subnets: prefixes("10.5.1.0/24"), Networks: prefixes("10.0.0.0/8"), Peers: manyPeers(50_000, true)}
	h.run(nil)
	h.sync(w)
	h.awaitQuiet()
	allocs := testing.AllocsPerRun(10, func() { h.sync(w) })
	if allocs > 100 {
		t.Errorf("%v allocations", allocs)
	}
}
