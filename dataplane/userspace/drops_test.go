package userspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

func TestSendDrops(t *testing.T) {
	tests := map[string]struct {
		packet []byte
		want   dataplane.Drop
	}{
		"empty":           {nil, dataplane.DropBadHeader},
		"not IP":          {make([]byte, 100), dataplane.DropBadHeader},
		"short":           {udpPacket(podA, podB, 1, 2, nil)[:27], dataplane.DropBadHeader},
		"no peer":         {udpPacket(podA, netip.MustParseAddr("10.42.3.1"), 1, 2, nil), dataplane.DropNoRoute},
		"own subnet":      {udpPacket(podA, podA.Next(), 1, 2, nil), dataplane.DropNoRoute},
		"multicast":       {udpPacket(podA, netip.MustParseAddr("224.0.0.251"), 1, 2, nil), dataplane.DropNoRoute},
		"broadcast":       {udpPacket(podA, netip.MustParseAddr("255.255.255.255"), 1, 2, nil), dataplane.DropNoRoute},
		"router solicit":  {packettest.IP(podA6, netip.MustParseAddr("ff02::2"), 58, []byte{133, 0, 0, 0}), dataplane.DropNoRoute},
		"no peer over v6": {udpPacket(podA6, netip.MustParseAddr("fd42:0:0:3::1"), 1, 2, nil), dataplane.DropNoRoute},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, _ := testPair(t)
			a.Load(test.packet)
			a.Send(1)
			want := dataplane.Stats{}
			want.Drops[test.want] = 1
			if got := a.Stats(); got != want {
				t.Errorf("counted %+v, want one %v", got, test.want)
			}
		})
	}
}

func TestReceiveDrops(t *testing.T) {
	const eth, ip = encap.VXLANLen, encap.HeaderLen
	set := func(i int, v ...byte) func(*carrier.Arrival) {
		return func(d *carrier.Arrival) { copy(d.Payload[i:], v) }
	}
	cut := func(n int) func(*carrier.Arrival) { return func(d *carrier.Arrival) { d.Payload = d.Payload[:n] } }
	inner := func(p []byte) func(*carrier.Arrival) {
		return func(d *carrier.Arrival) { d.Payload = append(d.Payload[:ip:ip], p...) }
	}
	inner6 := func(dst netip.Addr) func(*carrier.Arrival) {
		return func(d *carrier.Arrival) { set(eth+12, 0x86, 0xdd)(d); inner(udpPacket(podA6, dst, 1, 2, nil))(d) }
	}
	giant := tcpPacket(podA, podB, 1, make([]byte, 3000))
	giant[len(giant)-1]++
	badOffset := tcpPacket(podA, podB, 1, make([]byte, 3000))
	badOffset[32] = 0
	makePartial(badOffset)
	tests := map[string]struct {
		change func(*carrier.Arrival)
		want   dataplane.Drop
	}{
		"unknown VTEP":            {func(d *carrier.Arrival) { d.From = netip.MustParseAddr("192.0.2.9") }, dataplane.DropUnknownVTEP},
		"own address":             {func(d *carrier.Arrival) { d.From = netip.MustParseAddr("192.0.2.2") }, dataplane.DropUnknownVTEP},
		"empty":                   {cut(0), dataplane.DropBadHeader},
		"short VXLAN":             {cut(7), dataplane.DropBadHeader},
		"short Ethernet":          {cut(21), dataplane.DropBadHeader},
		"no packet":               {cut(22), dataplane.DropBadHeader},
		"short packet":            {cut(40), dataplane.DropBadHeader},
		"no I flag":               {set(0, 0), dataplane.DropBadVNI},
		"GBP":                     {set(0, 0x88), dataplane.DropBadVNI},
		"reserved":                {set(7, 1), dataplane.DropBadVNI},
		"other VNI":               {set(6, 2), dataplane.DropBadVNI},
		"other MAC":               {set(eth, 2, 2, 2, 2, 2, 2), dataplane.DropBadMAC},
		"zero MAC":                {set(eth, 0, 0, 0, 0, 0, 0), dataplane.DropBadMAC},
		"broadcast MAC":           {set(eth, 255, 255, 255, 255, 255, 255), dataplane.DropBadMAC},
		"multicast MAC":           {set(eth, 1, 0, 0x5e, 0, 0, 1), dataplane.DropBadMAC},
		"ARP":                     {set(eth+12, 8, 6), dataplane.DropBadHeader},
		"VLAN":                    {set(eth+12, 0x81, 0), dataplane.DropBadHeader},
		"IPv4 said to be IPv6":    {set(eth+12, 0x86, 0xdd), dataplane.DropBadHeader},
		"total length too long":   {set(ip+2, 0xff), dataplane.DropBadHeader},
		"header length too short": {set(ip, 0x44), dataplane.DropBadHeader},
		"to multicast":            {set(ip+16, 224, 0, 0, 1), dataplane.DropBadDestination},
		"to loopback":             {set(ip+16, 127, 0, 0, 1), dataplane.DropBadDestination},
		"to nobody":               {set(ip+16, 0, 0, 0, 0), dataplane.DropBadDestination},
		"to broadcast":            {set(ip+16, 255, 255, 255, 255), dataplane.DropBadDestination},
		"to the underlay address": {set(ip+16, 192, 0, 2, 2), dataplane.DropBadDestination},
		"to another underlay":     {set(ip+16, 192, 0, 2, 9), dataplane.DropBadDestination},
		"to the own broadcast":    {set(ip+16, 10, 42, 2, 255), dataplane.DropBadDestination},
		"to a third subnet":       {set(ip+16, 10, 42, 3, 2), dataplane.DropBadDestination},
		"back to the sender":      {set(ip+16, 10, 42, 1, 3), dataplane.DropBadDestination},
		"to the underlay over v6": {inner6(netip.MustParseAddr("2001:db8::2")), dataplane.DropBadDestination},
		"to a third subnet, v6":   {inner6(netip.MustParseAddr("fd42:0:0:3::2")), dataplane.DropBadDestination},
		"to all nodes, v6":        {inner6(netip.MustParseAddr("ff02::1")), dataplane.DropBadDestination},
		"to mapped loopback":      {inner6(netip.MustParseAddr("::ffff:127.0.0.1")), dataplane.DropBadDestination},
		"source not in subnet":    {set(ip+12, 10, 42, 3, 2), dataplane.DropBadSource},
		"source in ours":          {set(ip+12, 10, 42, 2, 2), dataplane.DropBadSource},
		"source loopback":         {set(ip+12, 127, 0, 0, 1), dataplane.DropBadSource},
		"damaged superpacket":     {inner(giant), dataplane.DropBadChecksum},
		"bad TCP data offset":     {inner(badOffset), dataplane.DropBadHeader},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := testPair(t)
			d := encapsulate(t, a, udpPacket(podA, podB, 1, 2, []byte("hello")))
			test.change(&d)
			requireDrop(t, b, d, test.want)
		})
	}
	t.Run("subnet of another peer", func(t *testing.T) {
		a, b := testPair(t)
		other := dataplane.Peer{VTEP: dataplane.VTEP{Addr: netip.MustParseAddr("192.0.2.3"), MAC: encap.MAC{2, 1}, VNI: testVNI},
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")}}
		self := dataplane.Peer{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{subnetA}}
		if err := b.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{self, other}}); err != nil {
			t.Fatal(err)
		}
		d := encapsulate(t, a, udpPacket(netip.MustParseAddr("10.42.3.2"), podB, 1, 2, []byte("hello")))
		requireDrop(t, b, d, dataplane.DropBadSource)
	})
}

// TestCongestionGoesInside has the outer and inner ECN fields of RFC 6040 for which
// something happens; encap tests the whole table.
func TestCongestionGoesInside(t *testing.T) {
	for _, test := range []struct {
		inner, outer, want encap.ECN
		dropped            bool
	}{
		{encap.ECN0, encap.ECN0, encap.ECN0, false},
		{encap.ECN0, encap.ECN1, encap.ECN1, false},
		{encap.ECN0, encap.ECNCE, encap.ECNCE, false},
		{encap.ECNNot, encap.ECN0, encap.ECNNot, false},
		{encap.ECNNot, encap.ECNCE, 0, true},
	} {
		a, b := testPairOf(t, AllOffloads)
		p := udpPacket(podA, podB, 1, 2, []byte("hello"))
		p[1] = byte(test.inner)
		binary.BigEndian.PutUint16(p[10:], 0)
		binary.BigEndian.PutUint16(p[10:], ^slowSum(p[:20]))
		d := encapsulateAll(a, [][]byte{p})[0]
		d.ECN = test.outer
		if test.dropped {
			requireDrop(t, b, d, dataplane.DropCongestion)
			continue
		}
		got := decapsulate(b, d)
		if len(got) != 1 || encap.PacketECN(got[0]) != test.want || !sound(got[0]) {
			t.Errorf("%+v: got %x", test, got)
		}
	}
}

func requireDrop(t *testing.T, m *Memory, d carrier.Arrival, why dataplane.Drop) {
	t.Helper()
	if got := decapsulate(m, d); got != nil {
		t.Errorf("delivered %x", got)
	}
	var want dataplane.Stats
	want.Drops[why] = 1
	if got := m.Stats(); got != want {
		t.Errorf("counted %+v, want one %v", got, why)
	}
}

// TestTwoLeasesOfOneVTEP has a peer for each subnet of one VTEP.
func TestTwoLeasesOfOneVTEP(t *testing.T) {
	a, b := testPair(t)
	var w dataplane.Wanted
	w.MTU, w.Subnets = testMTU, []netip.Prefix{subnetB}
	for _, s := range []string{"10.42.1.0/24", "10.42.3.0/24"} {
		w.Peers = append(w.Peers, dataplane.Peer{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{netip.MustParsePrefix(s)}})
	}
	if err := b.Sync(w); err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{"10.42.1.2", "10.42.3.2"} {
		if decapsulate(b, encapsulate(t, a, udpPacket(netip.MustParseAddr(src), podB, 1, 2, nil))) == nil {
			t.Errorf("from %s: dropped: %+v", src, b.Stats())
		}
	}
}

type brokenDevice struct{ left int }

func (d *brokenDevice) Write(b []byte) (int, error) {
	if d.left--; d.left < 0 {
		return 0, errors.New("no buffer space")
	}
	return len(b), nil
}

func TestDeviceRefusesPacket(t *testing.T) {
	for name, packet := range map[string][]byte{
		"packet":              udpPacket(podA, podB, 1, 2, nil),
		"one of the segments": makePartial(tcpPacket(podA, podB, 1, make([]byte, 5000))),
	} {
		a, b := testPair(t)
		b.core.lanes[0].writer = newPlain(&brokenDevice{left: len(packet) / 2000})
		b.LoadDatagrams(encapsulate(t, a, packet))
		b.Receive(1)
		var want dataplane.Stats
		want.Drops[dataplane.DropWriteError] = 1
		if got := b.Stats(); got != want {
			t.Errorf("%s: counted %+v", name, got)
		}
	}
}

// FuzzReceive gives any datagrams, with anything that UDP_GRO might say, to a plain
// receiver and to one with all offloads. What they deliver must have passed checks
// that are written here once more, slowly, and every datagram is counted once.
func FuzzReceive(f *testing.F) {
	for _, offloads := range []Offloads{0, AllOffloads} {
		a, _ := testPairOf(f, offloads)
		for _, p := range [][]byte{
			udpPacket(podA, podB, 1, 2, []byte("hello")),
			makePartial(udpPacket(podA6, podB6, 1, 2, []byte("hello"))),
			makePartial(tcpPacket(podA, podB, 1, make([]byte, 100))),
			makePartial(tcpPacket(podA6, podB6, 1, make([]byte, 100))),
		} {
			d := encapsulate(f, a, p).Payload
			f.Add(d, 0, byte(0))
			f.Add(append(d, d...), len(d), byte(1))
			f.Add(d, 60, byte(3))
			own := bytes.Clone(d)
			copy(own[14:20], own[8:14]) // a peer may have the same MAC
			f.Add(own, 0, byte(0))
		}
	}
	a, plain := fuzzPair(f, 0)
	_, fast := fuzzPair(f, AllOffloads)
	f.Fuzz(func(t *testing.T, payload []byte, gro int, ecn byte) {
		if len(payload) > 65507 {
			return
		}
		d := carrier.Arrival{From: a.core.vteps[0].Addr, GRO: gro, ECN: encap.ECN(ecn & 3)}
		for _, b := range []*Memory{plain, fast} {
			d.Payload = bytes.Clone(payload)
			fuzzOne(t, b, d)
		}
	})
}

// fuzzPair is a pair whose second one has a small MTU, which makes superpackets of
// small inputs: the fuzzer is faster with those.
func fuzzPair(f *testing.F, offloads Offloads) (a, b *Memory) {
	a, b = testPairOf(f, offloads)
	if err := b.Sync(dataplane.Wanted{MTU: 120, Subnets: []netip.Prefix{subnetB, subnetB6}, Peers: []dataplane.Peer{{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{
		subnetA, subnetA6}}}}); err != nil {
		f.Fatal(err)
	}
	return a, b
}

func fuzzOne(t *testing.T, b *Memory, d carrier.Arrival) {
	header := bytes.Clone(d.Payload[:min(encap.HeaderLen, len(d.Payload))])
	datagrams := countDatagrams(d)
	before := b.Stats()
	packets := decapsulate(b, d)
	after := b.Stats()
	counted := after.RxPackets - before.RxPackets
	for i := range after.Drops {
		counted += after.Drops[i] - before.Drops[i]
	}
	if counted != datagrams || (after.RxPackets > before.RxPackets) != (packets != nil) {
		t.Fatalf("%d datagrams counted %d times, %d packets: %+v", datagrams, counted, len(packets), after)
	}
	if datagrams > 1 {
		header = nil // each has its own
	}
	for _, p := range packets {
		if why := checkDelivered(b, header, p); why != "" {
			t.Fatalf("%s: delivered %x", why, p)
		}
	}
}

// countDatagrams returns how many datagrams a receiver makes of d.
func countDatagrams(d carrier.Arrival) (n uint64) {
	var wire carrier.Wire
	wire.LoadDatagrams(d)
	for wire.Rewind(1); wire.Receiver().Receive(new(carrier.Datagram), func() {}) == nil; {
		n++
	}
	return n
}

// checkDelivered says what is wrong with packet p, delivered for a datagram with
// that header, nil if it is not known.
func checkDelivered(m *Memory, payload, p []byte) string {
	mac := m.core.locals[carrier.Family4].mac[:]
	etherType := map[byte]uint16{4: 0x0800, 6: 0x86dd}[p[0]>>4]
	if payload == nil {
		payload = binary.BigEndian.AppendUint16(append([]byte{8, 0, 0, 0, 0, 0, testVNI, 0}, append(bytes.Clone(mac), make([]byte, 6)...)...), etherType)
	}
	dst, etherType := payload[8:14], binary.BigEndian.Uint16(payload[20:])
	switch {
	case !bytes.Equal(payload[:8], []byte{8, 0, 0, 0, 0, 0, testVNI, 0}):
		return "VXLAN header"
	case !bytes.Equal(dst, mac) && !bytes.Equal(dst, bytes.Repeat([]byte{255}, 6)):
		return "destination MAC"
	}
	var from, to, subnet netip.Addr
	switch {
	case etherType == 0x0800 && p[0]>>4 == 4:
		if len(p) != int(binary.BigEndian.Uint16(p[2:])) {
			return "total length"
		}
		from, to, subnet = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:])), podA
	case etherType == 0x86dd && p[0]>>4 == 6:
		if len(p) != 40+int(binary.BigEndian.Uint16(p[4:])) {
			return "payload length"
		}
		from, to, subnet = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:])), podA6
	default:
		return "EtherType and version"
	}
	if p, _ := subnet.Prefix(map[bool]int{true: 24, false: 64}[from.Is4()]); !p.Contains(from) && from != netip.MustParseAddr("192.0.2.1") {
		return "inner source"
	}
	if !subnetB.Contains(to) && !subnetB6.Contains(to) || to == netip.MustParseAddr("10.42.2.255") {
		return "inner destination"
	}
	return ""
}
