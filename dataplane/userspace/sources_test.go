package userspace

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// sourceNode is a node in memory, 192.0.2.2 with the subnet 10.42.2.0/24, that knows these peers.
func sourceNode(tb testing.TB, anyFrom []netip.Prefix, peers ...dataplane.Peer) (*Memory, error) {
	tb.Helper()
	own := netip.MustParseAddr("192.0.2.2")
	m := NewMemory(Config{Underlays: []dataplane.Underlay{{Local: own, Public: own}}, VNI: testVNI, Port: testPort, MTU: testMTU, AnyPeerFrom: anyFrom})
	return m, m.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: peers})
}

// sourcePeer is the peer 192.0.2.<i> with the subnet 10.42.<i>.0/24, whose packets come from source too.
func sourcePeer(i int, source string) dataplane.Peer {
	p := dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), MAC: encap.MAC{2, 1, 5: byte(i)}, VNI: testVNI},
		Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i), 0}), 24)}}
	if source != "" {
		p.Source = netip.MustParseAddr(source)
	}
	return p
}

// sourceDatagram returns a packet for m from the outer and the inner source.
func sourceDatagram(m *Memory, from, inner netip.Addr) carrier.Arrival {
	b := make([]byte, encap.HeaderLen, 200)
	t := encap.NewTemplate(testVNI, m.core.locals[carrier.Family4].mac, encap.MAC{2, 9})
	t.Put(b, encap.EtherTypeIPv4)
	return carrier.Arrival{Payload: append(b, udpPacket(inner, podB, 1, 2, []byte("x"))...), From: from}
}

// judgeSource returns what m makes of a packet from the outer and the inner source.
func judgeSource(tb testing.TB, m *Memory, from, inner netip.Addr) string {
	tb.Helper()
	before := m.Stats()
	if got := decapsulate(m, sourceDatagram(m, from, inner)); len(got) == 1 {
		return "accepted"
	}
	now := m.Stats()
	for why := range now.Drops {
		if now.Drops[why] > before.Drops[why] {
			return dataplane.Drop(why).String()
		}
	}
	return "lost"
}

// TestSourcesOfPeers: from which addresses packets of which peers come in.
func TestSourcesOfPeers(t *testing.T) {
	peers := []dataplane.Peer{sourcePeer(1, ""), sourcePeer(3, "10.0.0.3"), sourcePeer(4, "")}
	for _, tt := range []struct {
		from, inner, strict, loose string
	}{
		{"192.0.2.1", "10.42.1.2", "accepted", "accepted"},
		{"192.0.2.3", "10.42.3.2", "accepted", "accepted"},     // its published address
		{"10.0.0.3", "10.42.3.2", "accepted", "accepted"},      // and the other one
		{"10.0.0.3", "10.42.1.2", "bad_source", "accepted"},    // another peer may be behind the same address
		{"192.0.2.1", "10.42.3.2", "bad_source", "bad_source"}, // from where not any peer may be
		{"10.0.0.4", "10.42.4.2", "unknown_vtep", "accepted"},
		{"10.0.0.4", "10.42.1.2", "unknown_vtep", "accepted"}, // whose it is nobody can tell
		{"10.0.0.4", "10.42.9.2", "unknown_vtep", "bad_source"},
		{"10.0.0.4", "10.42.2.9", "unknown_vtep", "bad_source"}, // of this host's own subnet
		{"10.1.0.4", "10.42.4.2", "unknown_vtep", "unknown_vtep"},
		{"192.0.2.2", "10.42.4.2", "unknown_vtep", "unknown_vtep"},
	} {
		for anyFrom, want := range map[string]string{"": tt.strict, "10.0.0.0/24": tt.loose} {
			var nets []netip.Prefix
			if anyFrom != "" {
				nets = append(nets, netip.MustParsePrefix(anyFrom))
			}
			m, err := sourceNode(t, nets, peers...)
			if err != nil {
				t.Fatal(err)
			}
			if got := judgeSource(t, m, netip.MustParseAddr(tt.from), netip.MustParseAddr(tt.inner)); got != want {
				t.Errorf("%s with %s, any peer from %q: %s, want %s", tt.from, tt.inner, anyFrom, got, want)
			}
		}
	}
}

// TestSourcesThatAreRefused: no peer gets packets of another one, or of this host, by its Source; it stays a
// peer all the same.
func TestSourcesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, source string
		err          string
	}{
		{"another peer's address", "192.0.2.1", "source 192.0.2.1 is the address of another peer"},
		{"another peer's source", "10.0.0.1", "source 10.0.0.1 is that of peer 192.0.2.1"},
		{"this host's address", "192.0.2.2", "source 192.0.2.2 belongs to this host"},
		{"multicast", "224.0.0.1", "source 224.0.0.1 is not the address of one host"},
		{"of the other family", "2001:db8::3", "source 2001:db8::3 is not of the family of address 192.0.2.3"},
	} {
		m, err := sourceNode(t, nil, sourcePeer(1, "10.0.0.1"), sourcePeer(3, tt.source))
		if failed, rest := dataplane.PeerErrors(err); len(failed) != 1 || rest != nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.err)
		}
		for from, inner := range map[string]string{"192.0.2.1": "10.42.1.2", "10.0.0.1": "10.42.1.2", "192.0.2.3": "10.42.3.2"} {
			if got := judgeSource(t, m, netip.MustParseAddr(from), netip.MustParseAddr(inner)); got != "accepted" {
				t.Errorf("%s: %s with %s: %s", tt.name, from, inner, got)
			}
		}
	}
}

// TestSourceBecomesAddress: what was one peer's source is another peer's address after a Sync.
func TestSourceBecomesAddress(t *testing.T) {
	m, err := sourceNode(t, nil, sourcePeer(1, "192.0.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{sourcePeer(1, ""), sourcePeer(3, "")}}); err != nil {
		t.Fatal(err)
	}
	if got := judgeSource(t, m, netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("10.42.3.2")); got != "accepted" {
		t.Errorf("its own packet: %s", got)
	}
	if e := m.core.forwarding.Load().vteps.Lookup(netip.MustParseAddr("192.0.2.3")); e.Peer.Addr != netip.MustParseAddr("192.0.2.3") {
		t.Errorf("packets for 192.0.2.3 go to %s", e.Peer.Addr)
	}
}

// sourceChecks are all kinds of source check.
var sourceChecks = []dataplane.SourceCheck{dataplane.SourceStrict, dataplane.SourceOverlay, dataplane.SourceInner, dataplane.SourceOff}

// checkedNode is sourceNode with a kind of source check, and 10.42.0.0/16 for its network, unless w says else.
func checkedNode(tb testing.TB, check dataplane.SourceCheck, w dataplane.Wanted) (*Memory, error) {
	tb.Helper()
	own := netip.MustParseAddr("192.0.2.2")
	c := Config{Underlays: []dataplane.Underlay{{Local: own, Public: own}}, VNI: testVNI, Port: testPort, MTU: testMTU, SourceCheck: check}
	if check == dataplane.SourceInner {
		c.AnyPeerFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("192.0.2.12/30"), testNetwork, netip.MustParsePrefix("192.0.2.2/32")}
	}
	if w.Networks == nil {
		w.Networks = []netip.Prefix{testNetwork}
	}
	w.MTU, w.Subnets = testMTU, []netip.Prefix{subnetB}
	m := NewMemory(c)
	return m, m.Sync(w)
}

// TestSourceChecks: which sources each kind of check takes, from whom.
func TestSourceChecks(t *testing.T) {
	peers := []dataplane.Peer{sourcePeer(1, ""), sourcePeer(3, "10.0.1.3")}
	const yes, bad, unknown = "accepted", "bad_source", "unknown_vtep"
	for _, tt := range []struct {
		name, from, inner             string
		strict, overlay, inside, none string
	}{
		{"its pod", "192.0.2.1", "10.42.1.2", yes, yes, yes, yes},
		{"itself", "192.0.2.1", "192.0.2.1", yes, yes, yes, yes},
		{"itself, behind a NAT", "10.0.1.3", "10.0.1.3", yes, yes, yes, yes},
		{"itself, from its other address", "10.0.1.3", "192.0.2.3", yes, yes, yes, yes},
		{"another pod", "192.0.2.1", "10.42.3.2", bad, bad, bad, yes},
		{"another node", "192.0.2.1", "192.0.2.3", bad, bad, bad, yes},
		{"another node's NAT", "192.0.2.1", "10.0.1.3", bad, bad, bad, yes},
		{"a pod of this host", "192.0.2.1", "10.42.2.7", bad, bad, bad, yes},
		{"this host", "192.0.2.1", "192.0.2.2", bad, bad, bad, yes},
		{"the overlay's, of nobody", "192.0.2.1", "10.42.9.2", bad, bad, bad, yes},
		{"outside", "192.0.2.1", "203.0.113.5", bad, yes, bad, yes},
		{"loopback", "192.0.2.1", "127.0.0.1", bad, bad, bad, yes},
		{"multicast", "192.0.2.1", "224.0.0.1", bad, bad, bad, yes},
		{"broadcast", "192.0.2.1", "255.255.255.255", bad, bad, bad, yes},
		{"reserved", "192.0.2.1", "240.0.0.1", bad, bad, bad, yes},
		{"this network", "192.0.2.1", "0.0.0.0", bad, bad, bad, yes},
		{"link-local", "192.0.2.1", "169.254.1.1", bad, bad, bad, yes},
		{"a stranger as a pod", "10.9.0.1", "10.42.1.2", unknown, unknown, unknown, yes},
		{"a stranger from outside", "10.9.0.1", "203.0.113.5", unknown, unknown, unknown, yes},
		{"a NAT with a pod", "10.0.0.9", "10.42.1.2", unknown, unknown, yes, yes},
		{"a pod here as another pod", "10.42.2.7", "10.42.1.2", unknown, unknown, unknown, yes},
		{"another pod by itself", "10.42.1.2", "10.42.1.2", unknown, unknown, unknown, yes},
		{"the overlay's, of nobody, with a pod", "10.42.9.2", "10.42.1.2", unknown, unknown, unknown, yes},
		{"this host with a pod", "192.0.2.2", "10.42.1.2", unknown, unknown, unknown, yes},
		{"a NAT from outside", "10.0.0.9", "203.0.113.5", unknown, unknown, bad, yes},
	} {
		for i, want := range []string{tt.strict, tt.overlay, tt.inside, tt.none} {
			m, err := checkedNode(t, sourceChecks[i], dataplane.Wanted{Peers: peers})
			if err != nil {
				t.Fatal(err)
			}
			if got := judgeSource(t, m, netip.MustParseAddr(tt.from), netip.MustParseAddr(tt.inner)); got != want {
				t.Errorf("%s (%s with %s), %s: %s, want %s", tt.name, tt.from, tt.inner, sourceChecks[i], got, want)
			}
		}
	}
}

// TestNetworkOverUnderlay: if the network holds addresses of the underlay, only the leases in it are the overlay's.
func TestNetworkOverUnderlay(t *testing.T) {
	around := dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("10.42.200.1"), MAC: encap.MAC{2, 1, 5: 1}, VNI: testVNI},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}}
	for name, w := range map[string]dataplane.Wanted{
		"published address": {Peers: []dataplane.Peer{around}},
		"on-link prefix":    {Peers: []dataplane.Peer{sourcePeer(1, "")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.42.200.0/24")}},
	} {
		m, err := checkedNode(t, dataplane.SourceOverlay, w)
		if err != nil {
			t.Fatal(err)
		}
		from := w.Peers[0].Addr
		for inner, want := range map[string]string{"10.42.1.2": "accepted", "10.42.200.7": "accepted", "10.42.2.7": "bad_source"} {
			if got := judgeSource(t, m, from, netip.MustParseAddr(inner)); got != want {
				t.Errorf("%s: %s with %s: %s, want %s", name, from, inner, got, want)
			}
		}
		if got := sendFrom(m, netip.MustParseAddr("10.42.200.7"), netip.MustParseAddr("10.42.1.2")); got != "sent" {
			t.Errorf("%s: from the underlay to a pod: %s", name, got)
		}
	}
}

// sendFrom returns what becomes of a packet of m's host.
func sendFrom(m *Memory, src, dst netip.Addr) string {
	before := m.Stats()
	if len(encapsulateAll(m, [][]byte{udpPacket(src, dst, 1, 2, nil)})) == 1 {
		return "sent"
	}
	now := m.Stats()
	for why := range now.Drops {
		if now.Drops[why] > before.Drops[why] {
			return dataplane.Drop(why).String()
		}
	}
	return "lost"
}

// TestSourcesThatLeave: which sources packets of this host may have.
func TestSourcesThatLeave(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{"a pod", "10.42.2.7", "sent"},
		{"the host by its device", "10.42.2.0", "sent"},
		{"the host by its underlay address", "192.0.2.2", "sent"},
		{"outside", "203.0.113.5", "sent"},
		{"another node's pod", "10.42.1.7", "bad_source"},
		{"the pod that it is for", "10.42.3.7", "bad_source"},
		{"the overlay's, of nobody", "10.42.9.7", "bad_source"},
		{"broadcast of the own subnet", "10.42.2.255", "bad_source"},
		{"loopback", "127.0.0.1", "bad_source"},
		{"multicast", "224.0.0.1", "bad_source"},
	} {
		for _, check := range sourceChecks {
			m, err := checkedNode(t, check, dataplane.Wanted{Peers: []dataplane.Peer{sourcePeer(1, ""), sourcePeer(3, "")}})
			if err != nil {
				t.Fatal(err)
			}
			want := tt.want
			if check == dataplane.SourceOff {
				want = "sent"
			}
			if got := sendFrom(m, netip.MustParseAddr(tt.src), netip.MustParseAddr("10.42.3.7")); got != want {
				t.Errorf("%s (%s), %s: %s, want %s", tt.name, tt.src, check, got, want)
			}
		}
	}
	a, _ := testPair(t)
	for src, want := range map[string]string{"fd42:0:0:1::9": "sent", "fd42:0:0:2::9": "bad_source", "::ffff:10.42.1.2": "bad_source", "::1": "bad_source", "2001:db8::1": "sent"} {
		if got := sendFrom(a, netip.MustParseAddr(src), podB6); got != want {
			t.Errorf("%s: %s, want %s", src, got, want)
		}
	}
}

// TestSourceCheckConfig: what makes no sense is named.
func TestSourceCheckConfig(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.2")
	nat := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	for _, tt := range []struct {
		check   dataplane.SourceCheck
		anyFrom []netip.Prefix
		err     string
	}{
		{"", nil, ""}, {"", nat, ""}, {"strict", nil, ""}, {"overlay", nil, ""}, {"inner", nat, ""}, {"off", nil, ""},
		{"inner", nil, `SourceCheck is "inner", with 0 networks in AnyPeerFrom`},
		{"strict", nat, `SourceCheck is "strict", with 1 networks in AnyPeerFrom`},
		{"outer", nil, `SourceCheck is "outer"`},
	} {
		c := Config{Underlays: []dataplane.Underlay{{Local: own, Public: own}}, VNI: testVNI, Port: testPort, MTU: testMTU, SourceCheck: tt.check, AnyPeerFrom: tt.anyFrom}
		if err := c.check(); (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// slowJudge is the source check, slow and obvious.
func slowJudge(check dataplane.SourceCheck, anyFrom []netip.Prefix, peers []dataplane.Peer, from, inner netip.Addr) string {
	sender, owner := -1, -1
	for i, p := range peers {
		if p.Addr == from {
			sender = i
		}
		if slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(inner) }) {
			owner = i
		}
	}
	for i, p := range peers {
		if sender < 0 && p.Source == from && from != netip.MustParseAddr("192.0.2.2") {
			sender = i
		}
	}
	inside := from == netip.MustParseAddr("192.0.2.2") || testNetwork.Contains(from)
	loose := check == dataplane.SourceInner && (sender >= 0 || !inside) && slices.ContainsFunc(anyFrom, func(p netip.Prefix) bool { return p.Contains(from) })
	node := -1 // whose address or outer source the inner source is
	for i, p := range peers {
		if p.Source == inner && inner != netip.MustParseAddr("192.0.2.2") && !slices.ContainsFunc(peers, func(q dataplane.Peer) bool { return q.Addr == inner }) &&
			!slices.ContainsFunc(peers[:i], func(q dataplane.Peer) bool { return q.Source == inner }) {
			node = i
		}
	}
	for i, p := range peers {
		if p.Addr == inner {
			node = i
		}
	}
	outside := owner < 0 && node < 0 && inner != netip.MustParseAddr("192.0.2.2") && inner.IsValid() && slowMaySend("", inner) && !subnetB.Contains(inner) && !subnetB6.Contains(inner)
	switch {
	case check == dataplane.SourceOff:
		return "accepted"
	case sender < 0 && !loose:
		return "unknown_vtep"
	case owner >= 0 && (loose || sender == owner):
		return "accepted"
	case owner < 0 && sender >= 0 && node == sender:
		return "accepted"
	case check == dataplane.SourceOverlay && sender >= 0 && outside:
		return "accepted"
	}
	return "bad_source"
}

// FuzzSourceCheck has up to six peers, with and without sources that conflict, and compares the check with the slow one.
func FuzzSourceCheck(f *testing.F) {
	f.Add([]byte{1, 0, 3, 3, 4, 200}, byte(3), byte(3), byte(2))
	f.Add([]byte{1, 3, 3, 1}, byte(1), byte(3), byte(0))
	f.Add([]byte{3, 2, 4, 7, 5, 7}, byte(7), byte(5), byte(2))
	f.Add([]byte{3, 2, 4, 7, 5, 7}, byte(4), byte(0x87), byte(0))
	f.Add([]byte{3, 2, 4, 7, 5, 7}, byte(4), byte(0x92), byte(1))
	f.Add([]byte{3, 2, 4, 7, 5, 7}, byte(9), byte(0x99), byte(3))
	f.Fuzz(func(t *testing.T, data []byte, from, inner, kind byte) {
		var peers []dataplane.Peer
		seen := map[byte]bool{0: true, 2: true}
		for ; len(data) >= 2 && len(peers) < 6; data = data[2:] {
			if seen[data[0]%8] {
				continue
			}
			seen[data[0]%8] = true
			source := ""
			if data[1] > 0 { // 192.0.2.1 to 192.0.2.7 may be peers, too
				source = fmt.Sprintf("192.0.2.%d", data[1]%16)
			}
			peers = append(peers, sourcePeer(int(data[0]%8), source))
		}
		check := sourceChecks[kind%4]
		m, _ := checkedNode(t, check, dataplane.Wanted{Peers: peers}) // sources that conflict are errors
		a, i := netip.AddrFrom4([4]byte{192, 0, 2, from % 16}), netip.AddrFrom4([4]byte{10, 42, inner % 8, 9})
		if inner >= 0x80 { // an address of the underlay
			i = netip.AddrFrom4([4]byte{192, 0, 2, inner % 32})
		}
		if got, want := judgeSource(t, m, a, i), slowJudge(check, m.core.anyFrom, peers, a, i); got != want {
			t.Errorf("%s: %s with %s of %+v: %s, want %s", check, a, i, peers, got, want)
		}
	})
}

// TestSourceLog: a dropped source is logged once, unless it is a peer's by then; many are bounded.
func TestSourceLog(t *testing.T) {
	var text bytes.Buffer
	m, err := sourceNode(t, nil, sourcePeer(1, ""))
	if err != nil {
		t.Fatal(err)
	}
	s := &sourceLog{log: slog.New(slog.NewTextHandler(&text, nil))}
	now := time.Unix(0, 0)
	tick := func() string {
		text.Reset()
		now = now.Add(time.Second)
		s.report(now, m.core)
		return text.String()
	}
	drop := func(from, inner string) {
		judgeSource(t, m, netip.MustParseAddr(from), netip.MustParseAddr(inner))
	}
	for _, tt := range []struct{ from, inner, want string }{
		{"10.0.0.1", "10.42.1.2", `reason=unknown_vtep source=10.0.0.1 err="packets of peer 192.0.2.1 come from 10.0.0.1: behind a NAT? Its node has to say that this is its source"`},
		{"10.0.0.7", "10.9.1.2", `reason=unknown_vtep source=10.0.0.7 err="packets come from 10.0.0.7, which is not a peer, and their source 10.9.1.2 is in no peer's subnet"`},
		{"192.0.2.1", "10.9.1.2", `reason=bad_source source=192.0.2.1 err="peer 192.0.2.1 sends packets with source 10.9.1.2, which is in no peer's subnet"`},
	} {
		drop(tt.from, tt.inner)
		drop(tt.from, tt.inner)
		if early := tick(); early != "" {
			t.Errorf("logged before it was looked at again: %s", early)
		}
		if got := tick(); strings.Count(got, "\n") != 1 || !strings.Contains(got, tt.want) {
			t.Errorf("logged %q, want %s", got, tt.want)
		}
		drop(tt.from, tt.inner)
		if again := tick() + tick(); again != "" {
			t.Errorf("logged again: %s", again)
		}
	}
	sendFrom(m, netip.MustParseAddr("10.42.1.9"), netip.MustParseAddr("10.42.1.2"))
	tick()
	if got := tick(); !strings.Contains(got, `reason=bad_source source=10.42.1.9 err="this host sends packets with source 10.42.1.9, which is in a subnet of peer 192.0.2.1"`) {
		t.Errorf("logged %q about a packet of this host", got)
	}
	drop("192.0.2.3", "10.42.3.2")
	tick()
	if err := m.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{sourcePeer(3, "")}}); err != nil {
		t.Fatal(err)
	}
	if late := tick(); late != "" {
		t.Errorf("a peer by now, and logged: %s", late)
	}
	lines := 0
	for i := range 200 {
		drop(fmt.Sprintf("10.7.0.%d", i), "10.42.3.2")
		lines += strings.Count(tick(), "\n")
	}
	if lines > sourceLines+1 {
		t.Errorf("%d lines about ever new sources", lines)
	}
}

// TestDroppedSourcesCostNoMemory: noting them allocates nothing.
func TestDroppedSourcesCostNoMemory(t *testing.T) {
	m, err := sourceNode(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, sourcePeer(1, ""))
	if err != nil {
		t.Fatal(err)
	}
	d := sourceDatagram(m, netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.42.1.2"))
	l, f := m.core.lanes[0], m.core.forwarding.Load()
	n := testing.AllocsPerRun(100, func() {
		l.samples.n.Store(0)
		l.accept(f, &carrier.Datagram{Buf: d.Payload, From: d.From})
	})
	if n > 0 {
		t.Errorf("%v allocations for a dropped packet", n)
	}
}
