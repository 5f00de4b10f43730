package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

var nexthopIDs = regexp.MustCompile(`\b(id|nhid) \d+ `)

// objects lists what is on the overlay device, sorted, without ids.
func (h *host) objects() []string {
	h.tb.Helper()
	var out []string
	for what, args := range map[string][]string{
		"neigh":   {"ip", "-4", "neigh", "show", "dev", "flannel.1"},
		"fdb":     {"bridge", "fdb", "show", "dev", "flannel.1"},
		"nexthop": {"ip", "nexthop"},
		"route":   {"ip", "-4", "route", "show", "dev", "flannel.1"},
	} {
		list, err := h.Output(args[0], args[1:]...)
		if err != nil {
			out = append(out, err.Error()) // there is no device
		}
		for line := range strings.Lines(list) {
			line = nexthopIDs.ReplaceAllString(strings.TrimSpace(line), "")
			out = append(out, what+" "+line)
		}
	}
	slices.Sort(out)
	return out
}

// expect fails the test unless the objects are those of w.
func (h *host) expect(w dataplane.Wanted) {
	h.tb.Helper()
	if diff := cmp.Diff(objectsOf(w, true), h.objects()); diff != "" {
		h.tb.Errorf("want (-), got (+):\n%s", diff)
	}
}

// objectsOf is what objects lists for w.
func objectsOf(w dataplane.Wanted, nexthops bool) []string {
	var out []string
	for _, p := range w.Peers {
		out = append(out, fmt.Sprintf("fdb %s dst %s self permanent", p.MAC, p.Addr))
		for _, s := range p.Subnets {
			out = append(out, fmt.Sprintf("neigh %s lladdr %s PERMANENT", s.Addr(), p.MAC))
			if nexthops {
				out = append(out, fmt.Sprintf("nexthop via %s dev flannel.1 scope link proto 211 onlink", s.Addr()))
			}
			out = append(out, fmt.Sprintf("route %s via %s proto 211 onlink", s, s.Addr()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var (
	peerB = newPeer("192.0.2.20", "0e:00:00:00:00:0b", "10.5.2.0/24")
	peerC = newPeer("192.0.2.30", "0e:00:00:00:00:0c", "10.5.3.0/24", "10.5.4.0/24")
	peerD = newPeer("192.0.2.40", "0e:00:00:00:00:0d", "10.5.5.0/24")
)

func TestSyncMakesExactlyWhatIsWanted(t *testing.T) {
	for _, nexthops := range []bool{true, false} {
		h := newHosts(t, 1)[0]
		h.cfg.noNexthops = !nexthops
		h.open()
		changedMAC, changedAddr, moved := peerB, peerB, peerD
		changedMAC.MAC = mustMAC("0e:00:00:00:00:bb")
		changedAddr.Addr = netip.MustParseAddr("192.0.2.99")
		moved.Subnets = peerB.Subnets
		fewer, longer := peerC, peerC
		fewer.Subnets = peerC.Subnets[:1]
		longer.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.3.0/25"), peerC.Subnets[1]}
		for i, peers := range [][]dataplane.Peer{
			{peerB}, {peerB, peerC}, {peerB, peerC}, {changedMAC, peerC}, {changedAddr, peerC}, {changedMAC, fewer},
			{moved}, {peerB, longer}, {peerC, peerB}, {}, {peerB, peerC, peerD},
		} {
			w := wanted(peers...)
			h.sync(w)
			if diff := cmp.Diff(objectsOf(w, nexthops), h.objects()); diff != "" {
				t.Errorf("nexthops %v, step %d: want (-), got (+):\n%s", nexthops, i, diff)
			}
			if out := h.Run("ip", "-4", "-o", "addr", "show", "dev", "flannel.1"); !strings.Contains(out, " 10.5.1.0/32 ") {
				t.Error(out)
			}
		}
	}
}

// A change of the own subnet is one Sync: nothing is refused, missing or called a repair.
func TestOwnSubnetMoves(t *testing.T) {
	h := newHosts(t, 1)[0]
	w, log := h.logged(peerB, peerC)
	own := w.Subnets[0]
	taken := newPeer("192.0.2.50", "0e:00:00:00:00:0e", own.String())
	for _, step := range []struct {
		subnets []netip.Prefix
		peers   []dataplane.Peer
	}{
		{prefixes("10.5.9.0/24"), []dataplane.Peer{peerB, peerC}},
		{[]netip.Prefix{own}, []dataplane.Peer{peerB, peerC}},
		{prefixes("10.5.9.0/24"), []dataplane.Peer{peerB, peerC, taken}},
		{nil, []dataplane.Peer{peerB, taken}},
		{prefixes("10.5.9.0/24"), []dataplane.Peer{peerB, peerC, taken}},
	} {
		w.Subnets, w.Peers = step.subnets, step.peers
		h.sync(w)
		h.expect(w)
	}
	w.Peers = []dataplane.Peer{peerC}
	h.sync(w)
	h.expect(w)
	if out := log.String(); strings.Contains(out, "repaired") || strings.Contains(out, "level=WARN") {
		t.Error(out)
	}
}

// An address that the kernel refuses each time costs one more try in each Sync.
func TestOwnAddressRefused(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	w := wanted(peerB)
	w.MTU, w.Subnets = 1200, prefixes("10.5.1.0/24", "fd00:5:9::/64") // too small for IPv6
	refused := func(w dataplane.Wanted) {
		t.Helper()
		for range 3 {
			if _, err := h.dp.Sync(t.Context(), w); err == nil || !strings.Contains(err.Error(), "fd00:5:9::/128") || strings.Contains(err.Error(), "nexthop") {
				t.Errorf("got %v", err)
			}
			h.expect(w)
		}
	}
	refused(w)
	d := h.dp.tunnels[0]
	h.Must(func() error {
		l, err := d.ensureDevice()
		if err != nil {
			return err
		}
		if _, again := d.settle(w); d.adjust(l, w) == nil || again == nil {
			t.Error("not refused")
		}
		return nil
	})
	if len(d.changes) > 0 {
		t.Errorf("what the kernel refused is taken for a repair: %+v", d.changes)
	}
	// Another host takes the own subnet over.
	next := wanted(peerB, newPeer("192.0.2.50", "0e:00:00:00:00:0e", "10.5.1.0/24"))
	next.MTU, next.Subnets = w.MTU, prefixes("10.5.9.0/24", "fd00:5:9::/64")
	refused(next)
}

// A kernel without nexthop objects is asked and named once.
func TestPlainRoutesAreSaidOnce(t *testing.T) {
	h := newHosts(t, 1)[0]
	var log netnstest.Log
	h.cfg.Log, h.cfg.noNexthops = slog.New(slog.NewTextHandler(&log, nil)), true
	h.open()
	for range 3 {
		h.dp.program.have = nil
		h.sync(wanted(peerB))
		if diff := cmp.Diff(objectsOf(wanted(peerB), false), h.objects()); diff != "" {
			t.Error(diff)
		}
	}
	if n := log.Count("kernel has no nexthop objects"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestSyncRemovesWhatIsStaleAtStart(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerC, peerD))
	h.dp.Close()
	// Left by flannel, by an older us, or by hand.
	h.Run("ip", "neigh", "add", "10.5.7.0", "lladdr", "0e:00:00:00:00:77", "dev", "flannel.1", "nud", "permanent")
	h.Run("bridge", "fdb", "add", "0e:00:00:00:00:77", "dst", "192.0.2.77", "dev", "flannel.1")
	h.Run("bridge", "fdb", "append", "0e:00:00:00:00:0b", "dst", "192.0.2.78", "dev", "flannel.1")
	h.Run("ip", "route", "add", "10.5.7.0/24", "via", "10.5.7.0", "dev", "flannel.1", "onlink")
	h.Run("ip", "route", "add", "10.5.8.0/24", "via", "10.5.8.0", "dev", "flannel.1", "onlink", "proto", "211", "metric", "5")
	h.Run("ip", "nexthop", "add", "id", "7", "via", "10.5.7.0", "dev", "flannel.1", "onlink", "proto", "211")
	h.Run("ip", "nexthop", "add", "id", "8", "via", "10.5.2.0", "dev", "flannel.1", "onlink", "proto", "211")
	h.Run("ip", "nexthop", "add", "id", "9", "dev", "flannel.1", "proto", "211")
	h.open()
	h.sync(wanted(peerC))
	h.expect(wanted(peerC))
}

func TestSyncTouchesNothingForeign(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.Run("ip", "route", "add", "10.5.20.0/24", "dev", "flannel.1")                                                  // no gateway
	h.Run("ip", "route", "add", "10.5.21.0/24", "via", "10.5.99.1", "dev", "flannel.1", "onlink")                    // other gateway
	h.Run("ip", "route", "add", "10.5.22.0/24", "via", "10.5.22.0", "dev", "flannel.1", "onlink", "proto", "static") // other protocol
	h.Run("ip", "route", "add", "10.5.23.0/24", "via", "10.5.23.0", "dev", "flannel.1", "onlink", "metric", "9")     // metric
	h.Run("ip", "route", "add", "10.5.24.0/24", "via", "10.5.24.0", "dev", "flannel.1", "onlink", "table", "77")     // other table
	h.Run("ip", "route", "add", "10.5.25.0/24", "via", "192.0.2.1", "dev", "eth0")                                   // other device
	h.Run("ip", "nexthop", "add", "id", "5", "via", "10.5.26.0", "dev", "flannel.1", "onlink")                       // other protocol
	h.Run("ip", "nexthop", "add", "id", "6", "via", "192.0.2.1", "dev", "eth0", "proto", "211")                      // other device
	h.Run("ip", "neigh", "add", "192.0.2.88", "lladdr", "0e:00:00:00:00:88", "dev", "eth0", "nud", "permanent")      // other device
	h.Run("bridge", "fdb", "append", "00:00:00:00:00:00", "dst", "192.0.2.88", "dev", "flannel.1")                   // default entry
	h.Run("ip", "addr", "add", "203.0.113.7/24", "dev", "flannel.1")                                                 // foreign address
	list := func() string {
		return strings.Join([]string{h.Run("ip", "route", "show", "table", "all"), h.Run("ip", "nexthop"), h.Run("bridge", "fdb", "show", "dev", "flannel.1"),
			h.Run("ip", "-4", "neigh", "show", "nud", "permanent"), h.Run("ip", "-4", "addr", "show", "dev", "flannel.1")}, "\n--\n")
	}
	h.sync(wanted())
	h.AwaitAddrs()
	before := list()
	h.sync(wanted(peerB, peerC))
	h.sync(wanted())
	h.dp.Close()
	h.open().sync(wanted())
	if diff := cmp.Diff(before, list()); diff != "" {
		t.Error(diff)
	}
}

// notified opens a socket that gets the notifications of what Run watches.
func (h *host) notified() *os.File {
	h.tb.Helper()
	var f *os.File
	h.Must(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "notified")
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		for _, g := range slices.Concat(watchGroups(false).Must, watchGroups(false).May) {
			if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
				return err
			}
		}
		return nil
	})
	h.tb.Cleanup(func() { f.Close() })
	return f
}

// recorder counts notifications of everything that a restart could rewrite.
func (h *host) recorder() (count func() (events []string)) {
	h.tb.Helper()
	c := h.notified()
	return func() (events []string) {
		buf := make([]byte, 64<<10)
		for {
			c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			n, err := c.Read(buf)
			if err != nil {
				return events
			}
			watch.Messages(buf[:n], func(m unix.NlMsghdr, body []byte) { events = append(events, fmt.Sprint(m.Type, body)) })
		}
	}
}

func TestRestartRewritesNothing(t *testing.T) {
	for _, nexthops := range []bool{true, false} {
		h := newHosts(t, 1)[0]
		h.cfg.noNexthops = !nexthops
		h.open()
		w := wanted(manyPeers(50)...)
		h.sync(w)
		h.dp.Close()
		h.AwaitAddrs() // or the kernel says later that they are no duplicates
		events := h.recorder()
		events() // what the kernel still had to say
		h.open()
		h.sync(w)
		if e := events(); len(e) != 0 {
			t.Errorf("nexthops %v: %d events, the first %s", nexthops, len(e), e[0])
		}
	}
}

func TestNewPeerIsProgrammedInFlannelsOrder(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB))
	c := h.notified()
	h.sync(wanted(peerB, peerD))
	h.sync(wanted(peerB))
	var got []string
	buf := make([]byte, 64<<10)
	for len(got) < 8 {
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(got, err)
		}
		watch.Messages(buf[:n], func(m unix.NlMsghdr, body []byte) {
			name := map[uint16]string{unix.RTM_NEWNEIGH: "+neigh", unix.RTM_DELNEIGH: "-neigh", unix.RTM_NEWNEXTHOP: "+nexthop",
				unix.RTM_DELNEXTHOP: "-nexthop", unix.RTM_NEWROUTE: "+route", unix.RTM_DELROUTE: "-route"}[m.Type]
			if nb, ok := parseNeighbour(body); ok && strings.HasSuffix(name, "neigh") {
				if nb.family == unix.AF_BRIDGE {
					name = name[:1] + "fdb"
				} else if name == "+neigh" && !nb.permanent() {
					return // a neighbour first fails, then goes
				}
			}
			if name != "" {
				got = append(got, name)
			}
		})
	}
	want := []string{"+neigh", "+fdb", "+nexthop", "+route", "-route", "-nexthop", "-neigh", "-fdb"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestARefusedPeerConcernsNoOther(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.Run("ip", "route", "add", "10.5.2.0/24", "via", "192.0.2.1", "dev", "eth0") // peerB's subnet is taken
	h.Run("ip", "addr", "add", "10.5.4.0/32", "dev", "lo")                        // the gateway of one of peerC's is local
	broadcast := newPeer("192.0.2.50", "ff:ff:ff:ff:ff:ff", "10.5.6.0/24")
	before := h.Run("ip", "route", "show", "dev", "eth0")
	w := wanted(broadcast, peerB, peerC, peerD)
	remain := peerC
	remain.Subnets = peerC.Subnets[:1]
	for try := range 3 {
		_, err := h.dp.Sync(t.Context(), w)
		if !onlyPeers(err) || !errors.Is(err, rtnl.ErrRouteTaken) {
			t.Fatalf("got %v", err)
		}
		var refused []string
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			var p *dataplane.PeerError
			errors.As(e, &p)
			refused = append(refused, p.Peer.Addr.String())
		}
		if diff := cmp.Diff([]string{"192.0.2.50", "192.0.2.20", "192.0.2.30"}, refused); diff != "" {
			t.Errorf("try %d: %s\n%v", try, diff, err)
		}
		h.expect(wanted(remain, peerD))
	}
	if diff := cmp.Diff(before, h.Run("ip", "route", "show", "dev", "eth0")); diff != "" {
		t.Error(diff)
	}
	h.Run("ip", "route", "del", "10.5.2.0/24")
	h.Run("ip", "addr", "del", "10.5.4.0/32", "dev", "lo")
	w = wanted(peerB, peerC, peerD)
	h.sync(w)
	h.expect(w)
}

func TestSyncNoticesThatObjectsChangedUnderIt(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	h.sync(wanted(peerB, peerC))
	// What is remembered is wrong now: the route is there, the nexthop is not.
	h.Run("ip", "nexthop", "flush")
	h.Run("ip", "route", "add", "10.5.5.0/24", "via", "10.5.5.0", "dev", "flannel.1", "onlink")
	w := wanted(peerC, peerD)
	h.sync(w)
	h.expect(w)
}

func TestSyncAfterDeviceDeleted(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	w := wanted(peerB, peerC)
	h.sync(w)
	mac := h.link().HardwareAddr.String()
	h.Run("ip", "link", "del", "flannel.1")
	h.sync(w)
	h.expect(w)
	if got := h.link(); got.HardwareAddr.String() != mac || got.MTU != 1450 {
		t.Errorf("device is %+v", got.LinkAttrs)
	}
}

// With the last IPv4 address of a device the kernel removes its routes, and reports none of that.
func TestSyncAfterAddressesDeleted(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	w := wanted(peerB, peerC)
	h.sync(w)
	h.Run("ip", "address", "flush", "dev", "flannel.1")
	h.sync(w)
	h.expect(w)
}

func TestMTUAndSubnetChangeInPlace(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	w := wanted(peerB)
	h.sync(w)
	index := h.link().Index
	w.MTU, w.Subnets = 1400, []netip.Prefix{netip.MustParsePrefix("10.5.9.0/24")}
	h.sync(w)
	h.expect(w)
	if l := h.link(); l.Index != index || l.MTU != 1400 {
		t.Errorf("got %+v", l.LinkAttrs)
	}
	if out := h.Run("ip", "-4", "-o", "addr", "show", "dev", "flannel.1"); !strings.Contains(out, " 10.5.9.0/32 ") || strings.Contains(out, "10.5.1.0") {
		t.Error(out)
	}
}

func TestSyncGivesUpWithItsContext(t *testing.T) {
	h := newHosts(t, 1)[0].open()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.dp.Sync(ctx, wanted(peerB)); !errors.Is(err, ctx.Err()) {
		t.Errorf("got %v", err)
	}
	h.sync(wanted(peerB))
	h.expect(wanted(peerB))
}

// The same code serves IPv6 with a device of its own.
func TestIPv6Device(t *testing.T) {
	h := newHosts(t, 1)[0]
	h.Run("ip", "addr", "add", "2001:db8::2/64", "dev", "eth0", "nodad")
	h.cfg.Underlays = []dataplane.Underlay{h.underlay(netip.MustParseAddr("2001:db8::2"))}
	h.cfg.MTU = 1430
	h.open()
	w := dataplane.Wanted{
		Subnets:  []netip.Prefix{netip.MustParsePrefix("fd00:0:0:1::/64")},
		Networks: []netip.Prefix{netip.MustParsePrefix("fd00::/48")},
		MTU:      1430,
		Peers:    []dataplane.Peer{newPeer("2001:db8::3", "0e:00:00:00:00:03", "fd00:0:0:2::/64")},
	}
	for _, plain := range []bool{false, true, false} {
		h.dp.Close()
		h.cfg.noNexthops = plain
		h.open()
		h.sync(w)
		if !strings.HasPrefix(h.Run("ip", "-6", "route", "show", "proto", "211"), "fd00:0:0:2::/64 ") {
			t.Errorf("plain %v: %s", plain, h.Run("ip", "-6", "route"))
		}
		h.AwaitAddrs()
		events := h.recorder()
		h.dp.Close()
		events()
		h.open()
		h.sync(w)
		if e := events(); len(e) != 0 {
			t.Errorf("restart caused %d events: %s", len(e), e[0])
		}
	}
	w.Peers = nil
	h.sync(w)
	if out := h.Run("ip", "-6", "route", "show", "proto", "211") + h.Run("ip", "nexthop"); out != "" {
		t.Error(out)
	}
	w.Peers = []dataplane.Peer{peerB}
	if _, err := h.dp.Sync(t.Context(), w); !onlyPeers(err) || err == nil || !strings.Contains(err.Error(), "no tunnel") {
		t.Errorf("IPv4 peer: %v", err)
	}
}
