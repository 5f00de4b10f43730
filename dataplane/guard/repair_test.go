package guard

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// run runs the guard in a namespace until the test ends, and counts the calls of again.
func (g *Guard) keep(t *testing.T, ns *netnstest.NS, again func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ns.Do(func() error { return g.Run(ctx, again) }) }()
	t.Cleanup(func() {
		if cancel(); <-done != nil {
			t.Error("Run failed")
		}
	})
}

// TestRepairs: whatever others change of the table is as it was at once, and counted, and the counters go on.
func TestRepairs(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"table deleted":   {"delete", "table", "inet", "overlayd-guard-1"},
		"table flushed":   {"flush", "table", "inet", "overlayd-guard-1"},
		"ruleset flushed": {"flush", "ruleset"},
		"chain flushed":   {"flush", "chain", "inet", "overlayd-guard-1", "arrive"},
		"rule added":      {"insert", "rule", "inet", "overlayd-guard-1", "arrive", "accept"},
		"key deleted":     {"delete", "element", "inet", "overlayd-guard-1", "pair44_32", "{ 172.16.0.1 . 172.16.0.1 }"},
		"key added":       {"add", "element", "inet", "overlayd-guard-1", "pair444_24", "{ 172.16.0.1 . 10.9.0.0 . 9.0.0.0 }"},
		"chain added":     {"add", "chain", "inet", "overlayd-guard-1", "x"},
		"made dormant":    {"add", "table", "inet", "overlayd-guard-1", "{ flags dormant; }"},
		"all keys added":  {"add", "element", "inet", "overlayd-guard-1", "pair44_32", "{ * }"},
		"all pairs added": {"add", "element", "inet", "overlayd-guard-1", "pair444_24", "{ * }"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			g := openIn(t, ns, testConfig(t))
			g.sync(t, ns, manyPeers(3))
			g.keep(t, ns, func() { t.Error("again") })
			want := sortedLines(ns.Run("nft", "list", "table", "inet", "overlayd-guard-1"))
			ns.Run("nft", command...)
			eventually(t, "it is as it was", func() bool {
				got, _ := ns.Output("nft", "list", "table", "inet", "overlayd-guard-1")
				return slices.Equal(sortedLines(got), want)
			})
			eventually(t, "it is counted", func() bool { s := g.Status(); return s.State == dataplane.StateOK && s.Objects[0].Repairs == 1 })
		})
	}
}

// sortedLines forgets the order of chains and sets, which is that in which they were made.
func sortedLines(s string) []string { return slices.Sorted(strings.Lines(s)) }

// TestBeginsAnew: a table that lets all pass is not taken over.
func TestBeginsAnew(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"made dormant":   {"add", "table", "inet", "overlayd-guard-1", "{ flags dormant; }"},
		"all keys added": {"add", "element", "inet", "overlayd-guard-1", "pair44_32", "{ * }"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			openIn(t, ns, testConfig(t)).sync(t, ns, manyPeers(3))
			want := sortedLines(ns.Run("nft", "list", "table", "inet", "overlayd-guard-1"))
			ns.Run("nft", command...)
			g := openIn(t, ns, testConfig(t))
			ns.Must(func() error { _, err := g.Sync(t.Context(), manyPeers(3)); return err })
			if got := sortedLines(ns.Run("nft", "list", "table", "inet", "overlayd-guard-1")); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestCountersReset: what is dropped is counted, also after somebody has reset the counters.
func TestCountersReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	w.join()
	a := w.hosts[0]
	forge := func(n uint64) {
		want := w.total(a) + n
		for range n {
			sendRaw(w.stranger, packet(w.strange, a.addr, 1, testPort, a.frame(1, packet(w.hosts[1].podAddr(false), a.podAddr(false), 1, receivePort, []byte("forged")))))
		}
		eventually(t, "all are counted", func() bool { return w.total(a) == want })
	}
	forge(5)
	a.Run("nft", "reset", "counters", "table", "inet", a.guard.name)
	forge(3)
	a.guard.keep(t, a.NS, func() {})
	a.Run("nft", "delete", "table", "inet", a.guard.name)
	eventually(t, "the table is there", func() bool { return a.guard.Status().Objects[0].Repairs == 1 })
	forge(2)
	if n := w.total(a); n != 10 {
		t.Errorf("%d are counted, want 10", n)
	}
}

// TestChangeBesideSync: a change of somebody else just before a change by the guard itself is put back, though Run has not noticed it by then.
func TestChangeBesideSync(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"rule added":    {"insert", "rule", "inet", "overlayd-guard-1", "plain", "accept"},
		"chain flushed": {"flush", "chain", "inet", "overlayd-guard-1", "plain"},
		"jump deleted":  {"flush", "chain", "inet", "overlayd-guard-1", "here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			g := openIn(t, ns, testConfig(t))
			list := func() []string { return sortedLines(ns.Run("nft", "list", "table", "inet", "overlayd-guard-1")) }
			v := manyPeers(3)
			more := v
			more.Peers = slices.Clone(v.Peers)
			more.Peers[1].Subnets = append(slices.Clone(v.Peers[1].Subnets), netip.MustParsePrefix("10.100.0.0/25")) // a new length of subnets: rules change
			g.sync(t, ns, more)
			want := list()
			g.sync(t, ns, v)
			ns.Run("nft", command...)
			g.sync(t, ns, more)
			g.keep(t, ns, func() { t.Error("again") })
			eventually(t, "the table is as without the change", func() bool { return slices.Equal(list(), want) })
		})
	}
}

// TestDeviceMadeAgain: the rules name the devices that there are.
func TestDeviceMadeAgain(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	g := openIn(t, ns, testConfig(t))
	g.sync(t, ns, manyPeers(3))
	g.keep(t, ns, func() { t.Error("again") })
	gone := regexp.MustCompile(`(?m)iif \S+ accept$`)
	for range 2 {
		ns.Run("ip", "link", "add", "flannel.1", "type", "bridge")
		eventually(t, "the device is named", func() bool { return strings.Contains(ns.Run("nft", "list", "ruleset"), `iif "flannel.1" accept`) })
		ns.Run("ip", "link", "del", "flannel.1")
		eventually(t, "it is not any more", func() bool { return !gone.MatchString(ns.Run("nft", "list", "ruleset")) })
	}
	if n := g.Status().Objects[0].Repairs; n != 0 {
		t.Errorf("%d repairs", n)
	}
}

// TestOwnChangesAreNoRepairs: Sync and Prune cause notifications, and nothing to repair.
func TestOwnChangesAreNoRepairs(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	g := openIn(t, ns, testConfig(t))
	g.keep(t, ns, func() { t.Error("again") })
	for n := range 20 {
		g.sync(t, ns, manyPeers(n))
	}
	ns.Must(func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		same, err := g.compare()
		if !same {
			t.Error("the table is not as remembered")
		}
		return err
	})
	if n := g.Status().Objects[0].Repairs; n != 0 {
		t.Errorf("%d repairs", n)
	}
}

// TestDeviceIsDownWithoutTable: if the table cannot be written any more, the kernel's device is down until it can.
func TestDeviceIsDownWithoutTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	w.join()
	a := w.hosts[0]
	changed := make(chan bool, 10)
	a.guard.keep(t, a.NS, func() { changed <- a.guard.Holds() })
	isUp := func() (up bool) {
		a.Must(func() error {
			l, err := netlink.LinkByName(a.device())
			up = err == nil && l.Attrs().Flags&net.FlagUp != 0
			return err
		})
		return up
	}
	if !isUp() {
		t.Fatal("the device is down")
	}
	// Somebody puts a table of his own there, which nobody else can change.
	var held *nft.Held
	a.Must(func() (err error) {
		held, err = nft.Hold(nft.DeleteTable(nft.Inet, a.guard.name), nft.NewOwnedTable(nft.Inet, a.guard.name))
		return err
	})
	if <-changed {
		t.Fatal("the guard holds")
	}
	last := w.lastWanted(a)
	a.Must(func() error { _, err := a.dp.Sync(context.Background(), last); return expectError(err) })
	if isUp() || a.guard.Status().State != dataplane.StateFailed {
		t.Errorf("the device is up, or the guard says %+v", a.guard.Status())
	}
	held.Close()
	if !<-changed {
		t.Fatal("the guard does not hold")
	}
	a.Must(func() error { _, err := a.dp.Sync(context.Background(), last); return err })
	if !isUp() {
		t.Error("the device is still down")
	}
	w.check(100)
}

// TestBegins: what an earlier run has left stays until the first Sync, what it admitted until the first Prune; without a device
// all is forbidden at first.
func TestBegins(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	ns.Must(func() error {
		g := openIn(t, ns, testConfig(t))
		if c, err := read(g.name, true); err != nil || !c.exists || !g.Holds() {
			t.Errorf("%+v, %v", c, err)
		}
		return nil
	})
	first := openIn(t, ns, testConfig(t))
	first.sync(t, ns, manyPeers(5))
	left := func() (n int) {
		ns.Must(func() error {
			c, err := read(first.name, true)
			n = len(c.sets["pair444_24"])
			return err
		})
		return n
	}
	second := openIn(t, ns, testConfig(t))
	if n := left(); n != 5 {
		t.Errorf("%d after Open", n)
	}
	w := manyPeers(1)
	w.Peers[0].Subnets = append(w.Peers[0].Subnets, netip.MustParsePrefix("10.9.9.0/24"))
	ns.Must(func() error { _, err := second.Sync(t.Context(), w); return err })
	if n := left(); n != 6 {
		t.Errorf("%d after Sync", n)
	}
	ns.Must(func() error { return second.Prune(t.Context(), w) })
	if n := left(); n != 2 {
		t.Errorf("%d after Prune", n)
	}
	ns.Must(func() error {
		c, err := read(second.name, true)
		if !c.sets.equal(second.members.have()) {
			t.Errorf("the kernel has %v, remembered is %v", c.sets, second.members.have())
		}
		return err
	})
}

// TestOpenWritesNothing: a daemon that comes back does not try again what the kernel can: packets wait for it.
func TestOpenWritesNothing(t *testing.T) {
	ns := netnstest.New(t)
	openIn(t, ns, testConfig(t)).sync(t, ns, manyPeers(3))
	count := func() (n uint32) {
		ns.Must(func() (err error) { n, err = nft.Generation(nft.Inet); return err })
		return n
	}
	before := count()
	g := openIn(t, ns, testConfig(t))
	if now := count(); now != before || !g.Holds() {
		t.Errorf("nftables changed %d times, and the guard is in place: %v", now-before, g.Holds())
	}
	g.sync(t, ns, manyPeers(4))
}

// TestOriginsStay: another guard of the same table makes the same origins, so that packets on their way are known, and what others
// have noted of the table stays true.
func TestOriginsStay(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	c := testConfig(t)
	c.IPv4, c.IPv6 = false, true
	w := manyPeers(1)
	w.Peers[0].Addr = netip.MustParseAddr("2001:db8::7")
	list := func() string { return ns.Run("nft", "-s", "list", "table", "inet", dataplane.GuardTable(c.VNI)) }
	ns.Must(func() (err error) {
		g, err := Open(c)
		if err != nil {
			return err
		}
		defer g.Close()
		g.cfg.seed = 7 // as of another process
		_, err = g.Sync(t.Context(), w)
		return err
	})
	first := list()
	openIn(t, ns, c).sync(t, ns, w)
	if again := list(); again != first || !strings.Contains(first, "seed 0x7") {
		t.Errorf("was\n%s\nis\n%s", first, again)
	}
}

// TestSwitched: off removes the rules, also while others are synced, and on writes them again; the counters stay.
func TestSwitched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	off := false
	w.config = func(c *Config) { c.Off = func() bool { return off } }
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	forge := func(text []byte) {
		sendRaw(w.stranger, packet(b.addr, a.addr, 1, testPort, a.frame(1, packet(netip.MustParseAddr("8.8.8.8"), a.podAddr(false), 1, receivePort, text))))
	}
	w.stranger.Run("ip", "route", "replace", "10.42.0.0/16", "via", a.addr.String())
	plain := func(text []byte) {
		sendRaw(w.stranger, packet(b.podAddr(false), a.podAddr(false), 1, receivePort, text))
	}
	w.expect("on", a, dataplane.DropBadSource, forge)
	w.expect("on, plain", a, dataplane.DropPlainSource, plain)
	off = true
	a.Must(a.guard.Switched)
	a.sync()
	forge([]byte("off"))
	plain([]byte("off, plain"))
	eventually(t, "they arrive", func() bool { return w.place("off") != "" && w.place("off, plain") != "" })
	if s := a.guard.Status(); s.State != dataplane.StateDegraded || !a.guard.IsOff() || !a.guard.Holds() || w.total(a) != 2 {
		t.Errorf("%+v, %d dropped", s, w.total(a))
	}
	w.check(100)
	off = false
	a.Must(a.guard.Switched)
	w.expect("on again", a, dataplane.DropBadSource, forge)
	w.expect("on again, plain", a, dataplane.DropPlainSource, plain)
	w.check(100)
}

// TestCleanup removes the tables of some networks, or of all, and none of others.
func TestCleanup(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	for _, vni := range []uint32{1, 2, 3} {
		c := testConfig(t)
		c.VNI = vni
		openIn(t, ns, c)
	}
	for _, name := range []string{"overlayd-guard-x", "overlayd-guard-01", "overlayd-1"} {
		ns.Run("nft", "add", "table", "inet", name)
	}
	ns.Must(func() error {
		for _, c := range []struct {
			vnis []uint32
			want int
		}{{[]uint32{2}, 1}, {[]uint32{2}, 0}, {nil, 2}, {nil, 0}} {
			if removed, err := Cleanup(c.vnis...); len(removed) != c.want || err != nil {
				t.Errorf("%v: removed %q, %v", c.vnis, removed, err)
			}
		}
		return nil
	})
	if n := len(ns.Run("nft", "list", "tables")); n < 40 {
		t.Error("others' tables are gone")
	}
}
