package encap

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// build serializes layers with gopacket, which fills in lengths and checksums:
// what the tests of this package parse is never written by this package.
func build(tb testing.TB, l ...gopacket.SerializableLayer) []byte {
	tb.Helper()
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, l...); err != nil {
		tb.Fatalf("serialize layers: %v", err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

var (
	src4, dst4 = netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.2.3")
	src6, dst6 = netip.MustParseAddr("fd00:0:0:1::2"), netip.MustParseAddr("fd00:0:0:2::3")
)

// network returns the IP layer of a test packet, of version 4 or 6.
func network(version int, proto layers.IPProtocol) gopacket.SerializableLayer {
	if version == 4 {
		return &layers.IPv4{Version: 4, TTL: 64, Id: 0xfffe, Protocol: proto,
			SrcIP: src4.AsSlice(), DstIP: dst4.AsSlice()}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto,
		SrcIP: src6.AsSlice(), DstIP: dst6.AsSlice()}
}

// tcpLayer returns the TCP layer of a test packet over l3.
func tcpLayer(tb testing.TB, l3 gopacket.SerializableLayer) *layers.TCP {
	tb.Helper()
	l := &layers.TCP{SrcPort: 4000, DstPort: 80, Seq: 0xfffffff0, Ack: 7, ACK: true, Window: 100,
		Options: []layers.TCPOption{
			{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: make([]byte, 8)},
		}}
	if err := l.SetNetworkLayerForChecksum(l3.(gopacket.NetworkLayer)); err != nil {
		tb.Fatalf("set network layer: %v", err)
	}
	return l
}

func udpLayer(tb testing.TB, l3 gopacket.SerializableLayer) *layers.UDP {
	tb.Helper()
	l := &layers.UDP{SrcPort: 4000, DstPort: 53}
	if err := l.SetNetworkLayerForChecksum(l3.(gopacket.NetworkLayer)); err != nil {
		tb.Fatalf("set network layer: %v", err)
	}
	return l
}

// tcpPacket returns a TCP packet of IP version 4 or 6 with the given payload.
func tcpPacket(tb testing.TB, version int, payload []byte) []byte {
	tb.Helper()
	l3 := network(version, layers.IPProtocolTCP)
	return build(tb, l3, tcpLayer(tb, l3), gopacket.Payload(payload))
}

func udpPacket(tb testing.TB, version int, payload []byte) []byte {
	tb.Helper()
	l3 := network(version, layers.IPProtocolUDP)
	return build(tb, l3, udpLayer(tb, l3), gopacket.Payload(payload))
}

// pattern returns n bytes of which no two neighbours are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// parse is ParseIP for a packet that must be good.
func parse(tb testing.TB, b []byte) *IP {
	tb.Helper()
	ip := new(IP)
	if err := ParseIP(b, ip); err != nil {
		tb.Fatalf("ParseIP(% x): %v", b[:min(len(b), 64)], err)
	}
	return ip
}
