package userspace

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// fuzzPeers are two peers, one of them with both families and an outer source of its own.
func fuzzPeers() []dataplane.Peer {
	b := sourcePeer(3, "10.0.1.3")
	b.Subnets = append(b.Subnets, netip.MustParsePrefix("fd42:0:0:3::/64"))
	return []dataplane.Peer{sourcePeer(1, ""), b}
}

var fuzzWanted = dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB, subnetB6}, Networks: []netip.Prefix{testNetwork, testNetwork6}, Peers: fuzzPeers()}

// fuzzNode is a node in memory, 192.0.2.2, with those peers.
func fuzzNode(tb testing.TB, check dataplane.SourceCheck) *Memory {
	tb.Helper()
	own := netip.MustParseAddr("192.0.2.2")
	c := Config{Underlays: []dataplane.Underlay{{Local: own, Public: own}}, VNI: testVNI, Port: testPort, MTU: testMTU, SourceCheck: check}
	if check == dataplane.SourceInner {
		c.AnyPeerFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	}
	m := NewMemory(c)
	if err := m.Sync(fuzzWanted); err != nil {
		tb.Fatal(err)
	}
	return m
}

// slowAccept judges a datagram from an outer source, step by step and by lists.
func slowAccept(m *Memory, check dataplane.SourceCheck, from netip.Addr, b []byte) string {
	mac := m.core.locals[carrier.Family4].mac[:]
	switch {
	case len(b) < 8:
		return "bad_header"
	case !bytes.Equal(b[:8], []byte{8, 0, 0, 0, 0, 0, testVNI, 0}):
		return "bad_vni"
	}
	// What slowJudge says before it has seen an inner source.
	if slowJudge(check, m.core.anyFrom, fuzzPeers(), from, netip.Addr{}) == "unknown_vtep" {
		return "unknown_vtep"
	}
	switch {
	case len(b) < 22:
		return "bad_header"
	case !bytes.Equal(b[8:14], mac):
		return "bad_mac"
	}
	var ip encap.IP // whose parser is fuzzed against another one
	if encap.ParseIP(b[22:], &ip) != nil || binary.BigEndian.Uint16(b[20:]) != map[uint8]uint16{4: 0x0800, 6: 0x86dd}[ip.Version] {
		return "bad_header"
	}
	if why := slowJudge(check, m.core.anyFrom, fuzzPeers(), from, ip.Src); why != "accepted" {
		return why
	}
	if !subnetB.Contains(ip.Dst) && !subnetB6.Contains(ip.Dst) || ip.Dst == netip.MustParseAddr("10.42.2.255") {
		return "bad_destination"
	}
	return "accepted"
}

// FuzzAccept compares what becomes of any datagram, from any source, with any kind of check, with the slow judgement.
func FuzzAccept(f *testing.F) {
	strict := fuzzNode(f, dataplane.SourceStrict)
	for _, p := range [][]byte{
		udpPacket(netip.MustParseAddr("10.42.1.2"), podB, 1, 2, []byte("hello")),
		udpPacket(netip.MustParseAddr("10.42.3.2"), podB, 1, 2, []byte("hello")),
		udpPacket(netip.MustParseAddr("192.0.2.1"), podB, 1, 2, []byte("hello")),
		udpPacket(netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.42.2.255"), 1, 2, []byte("hello")),
		udpPacket(netip.MustParseAddr("fd42:0:0:3::2"), podB6, 1, 2, []byte("hello")),
		udpPacket(netip.MustParseAddr("::ffff:10.42.1.2"), podB6, 1, 2, []byte("hello")),
	} {
		b := make([]byte, encap.HeaderLen)
		t := encap.NewTemplate(testVNI, strict.core.locals[carrier.Family4].mac, encap.MAC{2, 9})
		t.Put(b, etherTypeOf(p[0]>>4))
		for i := range 24 {
			f.Add(append(bytes.Clone(b), p...), byte(i))
		}
	}
	froms := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("10.0.1.3"), netip.MustParseAddr("10.0.0.9"),
		netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("203.0.113.9")}
	nodes := map[dataplane.SourceCheck]*Memory{}
	for _, c := range sourceChecks {
		nodes[c] = fuzzNode(f, c)
	}
	f.Fuzz(func(t *testing.T, payload []byte, kind byte) {
		if len(payload) > 2000 {
			return
		}
		check, from := sourceChecks[kind%4], froms[int(kind/4)%len(froms)]
		m := nodes[check]
		want := slowAccept(m, check, from, payload)
		got := "accepted"
		if d := (carrier.Datagram{Buf: bytes.Clone(payload), From: from}); len(payload) >= 8 && want != "bad_vni" {
			if why, ok := m.core.lanes[0].accept(m.core.forwarding.Load(), &d); !ok {
				got = why.String()
			}
		} else {
			before := m.Stats()
			m.worker.receive(&d)
			m.worker.flush()
			got = want
			if now := m.Stats(); now.RxPackets != before.RxPackets {
				got = "accepted"
			}
		}
		if got != want {
			t.Errorf("%s, from %s: %s, want %s: %x", check, from, got, want, payload)
		}
	})
}

// slowMaySend judges a packet of this host.
func slowMaySend(check dataplane.SourceCheck, src netip.Addr) bool {
	b := src.AsSlice()
	switch {
	case check == dataplane.SourceOff:
		return true
	case subnetB.Contains(src) || subnetB6.Contains(src):
		return src != netip.MustParseAddr("10.42.2.255")
	case testNetwork.Contains(src) || testNetwork6.Contains(src):
		return false
	case src.Is4():
		return b[0] != 0 && b[0] != 127 && b[0] < 224 && !(b[0] == 169 && b[1] == 254)
	}
	mapped, zero := true, true
	for i := range b {
		mapped = mapped && (i >= 10 && i < 12 && b[i] == 0xff || i < 10 && b[i] == 0 || i >= 12)
		zero = zero && (b[i] == 0 || i >= 12)
	}
	return !mapped && !zero && b[0] != 0xff && !(b[0] == 0xfe && b[1]&0xc0 == 0x80)
}

// FuzzMaySend compares the check of sources that leave with the slow one.
func FuzzMaySend(f *testing.F) {
	for _, a := range []string{"10.42.2.2", "10.42.2.255", "10.42.1.1", "0.0.0.1", "127.0.0.1", "169.254.0.1", "224.0.0.1", "240.0.0.1", "203.0.113.1",
		"fd42:0:0:2::9", "fd42::1", "::1", "::", "::2", "::ffff:1.2.3.4", "fe80::1", "ff02::1", "2001:db8::1"} {
		f.Add(netip.MustParseAddr(a).AsSlice(), byte(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind byte) {
		src, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		check := sourceChecks[kind%4]
		s := forwarding{sources: newSources(&testLocals, fuzzWanted)}
		s.set(check, nil)
		p := udpPacket(src, map[bool]netip.Addr{true: podA, false: podA6}[src.Is4()], 1, 2, nil)
		src4, _, ok := encap.Ends4(p)
		got := ok && s.own4.holds(src4) || s.maySend(encap.Source(p, etherTypeOf(p[0]>>4)))
		if want := slowMaySend(check, src); got != want {
			t.Errorf("%s: %s may leave: %t, want %t", check, src, got, want)
		}
	})
}
