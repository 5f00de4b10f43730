package guard

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

func testConfig(tb testing.TB) Config {
	return Config{Log: slog.New(slog.NewTextHandler(tb.Output(), nil)), VNI: 1, Port: 8472, Check: dataplane.SourceStrict,
		Mark: DefaultMark, Underlay: "eth0", IPv4: true}
}

// manyPeers is a network of n peers.
func manyPeers(n int) dataplane.Wanted {
	w := dataplane.Wanted{Networks: prefixes("10.0.0.0/8"), Subnets: prefixes("10.255.0.0/24"), MTU: 1450}
	for i := range n {
		w.Peers = append(w.Peers, dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), VNI: 1},
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}})
	}
	return w
}

// openIn opens a guard in a namespace.
func openIn(tb testing.TB, ns *netnstest.NS, c Config) *Guard {
	tb.Helper()
	var g *Guard
	ns.Must(func() (err error) { g, err = Open(c); return err })
	tb.Cleanup(func() { g.Close() })
	return g
}

func (g *Guard) sync(tb testing.TB, ns *netnstest.NS, w dataplane.Wanted) {
	tb.Helper()
	ns.Must(func() error {
		_, err := g.Sync(context.Background(), w)
		if err == nil {
			err = g.Prune(context.Background(), w)
		}
		return err
	})
}

// TestScale: the first write of many peers takes 100 ms, and one change 1 ms, whoever forwards. If the kernel alone takes half of that or more for
// the same keys, they take twice what it does. Times are those that the calling thread has the processor, and the best of several counts: other
// tests take time of this machine too.
func TestScale(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		t.Run(map[bool]string{true: "kernel", false: "userspace"}[kernel], func(t *testing.T) { scale(t, kernel) })
	}
}

// bare returns how long it takes to write the keys to a table without rules, and to change one of them.
func bare(t *testing.T, ns *netnstest.NS, all keys) (first, change time.Duration) {
	const table = "bare"
	commit := func(steps ...nft.Step) (took time.Duration) {
		ns.Must(func() error {
			start := threadTime(t)
			err := nft.Commit(steps)
			took = threadTime(t) - start
			return err
		})
		return took
	}
	first, change = time.Hour, time.Hour
	for range 3 {
		steps := newTable(table)
		for i, set := range slices.Sorted(maps.Keys(all)) {
			steps = append(steps, nft.NewSet(nft.Inet, table, setOf(set), uint32(i+1)))
			steps = append(steps, nft.AddElements(nft.Inet, table, set, slices.Collect(maps.Keys(all[set])))...)
		}
		first = min(first, commit(steps...))
		for set, list := range all {
			for key := range list {
				one := []string{key}
				change = min(change, commit(nft.DeleteElements(nft.Inet, table, set, one)...)+commit(nft.AddElements(nft.Inet, table, set, one)...))
				break
			}
		}
		commit(nft.DeleteTable(nft.Inet, table))
	}
	return first, change
}

func scale(t *testing.T, kernel bool) {
	ns := netnstest.New(t)
	const peers = 10_000
	w := manyPeers(peers)
	first, change := time.Hour, time.Hour
	var g *Guard
	for range 3 {
		ns.Must(func() error { _, err := Cleanup(); return err })
		g = openIn(t, ns, testConfig(t))
		g.Forwards(kernel)
		ns.Must(func() error {
			start := threadTime(t)
			_, err := g.Sync(context.Background(), w)
			first = min(first, threadTime(t)-start)
			return err
		})
		ns.Must(func() error { return g.Prune(context.Background(), w) })
	}
	for i := range 20 {
		w.Peers = slices.Clone(w.Peers)
		w.Peers[7].Subnets = prefixes(fmt.Sprintf("10.200.%d.0/24", i))
		ns.Must(func() error {
			start := threadTime(t)
			_, err := g.Sync(context.Background(), w)
			change = min(change, threadTime(t)-start)
			return err
		})
		ns.Must(func() error { return g.Prune(context.Background(), w) })
	}
	bareFirst, bareChange := bare(t, ns, g.members.have())
	t.Logf("first write %v, one change %v; the kernel alone %v and %v", first, change, bareFirst, bareChange)
	if first > slowdown*max(100*time.Millisecond, 2*bareFirst) || change > slowdown*max(time.Millisecond, 2*bareChange) {
		t.Errorf("first write %v, one change %v", first, change)
	}
	var c content
	ns.Must(func() (err error) { c, err = read(g.name, true); return err })
	if n := len(c.sets["pair444_24"]); n != peers || !c.sets.equal(g.members.have()) {
		t.Errorf("%d pairs, or other keys than are remembered", n)
	}
}

// TestHooks: the chain that checks what comes out of the kernel's device is there while the kernel forwards, and costs nothing while this
// process does. That is so for a guard that finds the table of an earlier one, too, also if that was of another version.
func TestHooks(t *testing.T) {
	ns := netnstest.New(t)
	for i, kernel := range []bool{true, false, true, true, true, false, false} {
		if i == 3 { // an earlier version of the guard had another chain
			ns.Run("nft", "add", "chain", "inet", "overlayd-guard-1", "arrive_flannel.1", "{ type filter hook ingress device lo priority -310; }")
		}
		g := openIn(t, ns, testConfig(t))
		g.Forwards(!kernel)
		if i%2 == 0 {
			g.sync(t, ns, manyPeers(1))
		}
		g.Forwards(kernel)
		g.sync(t, ns, manyPeers(2))
		want := map[string]bool{"hook prerouting": kernel, "hook ingress": false}
		for hook, want := range want {
			if got := strings.Contains(ns.Run("nft", "list", "table", "inet", g.name), hook); got != want {
				t.Errorf("guard %d, kernel %v: %s: %v", i, kernel, hook, got)
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
