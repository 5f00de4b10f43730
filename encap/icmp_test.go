package encap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var node4, node6 = netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("fd00:0:0:1::1")

// dontFragment is tcpPacket with DF set if it has such a bit.
func dontFragment(t *testing.T, version, n int) []byte {
	t.Helper()
	packet := tcpPacket(t, version, pattern(n))
	if version == 4 {
		packet[6] |= 0x40
		fix(t, packet)
	}
	return packet
}

// TestPutTooBigReadByGopacket decodes the answer with gopacket and makes the
// same bytes with it.
func TestPutTooBigReadByGopacket(t *testing.T) {
	for _, tt := range []struct {
		name      string
		version   int
		n, mtu    int
		quote     int
		announced uint32
	}{
		{"long IPv4", 4, 1400, 1400, 548, 1400},
		{"short IPv4", 4, 10, 1400, 62, 1400},
		{"IPv4, no MTU", 4, 1400, 0, 548, 68},
		{"IPv4, an MTU above all", 4, 1400, 1 << 20, 548, 65535},
		{"long IPv6", 6, 1400, 1400, 1232, 1400},
		{"short IPv6", 6, 10, 1400, 82, 1400},
		{"IPv6, an MTU below all", 6, 1400, 576, 1232, 1280},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packet := append(dontFragment(t, tt.version, tt.n), "padding"...)
			from := map[int]netip.Addr{4: node4, 6: node6}[tt.version]
			dst := bytes.Repeat([]byte{0xee}, MaxTooBig)
			got := dst[:PutTooBig(dst, packet, parse(t, packet), from, tt.mtu)]
			want := gopacketTooBig(t, tt.version, tt.announced, packet[:tt.quote])
			if !bytes.Equal(got, want) {
				t.Errorf("got  % x\nwant % x", got, want)
			}
		})
	}
}

// gopacketTooBig has gopacket make the answer that quotes quote.
func gopacketTooBig(t *testing.T, version int, mtu uint32, quote []byte) []byte {
	t.Helper()
	if version == 4 {
		return build(t,
			&layers.IPv4{Version: 4, TOS: 0xc0, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolICMPv4,
				SrcIP: node4.AsSlice(), DstIP: src4.AsSlice()},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: uint16(mtu)},
			gopacket.Payload(quote))
	}
	l3 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: node6.AsSlice(), DstIP: src6.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}
	if err := icmp.SetNetworkLayerForChecksum(l3); err != nil {
		t.Fatalf("set network layer: %v", err)
	}
	return build(t, l3, icmp, gopacket.Payload(binary.BigEndian.AppendUint32(nil, mtu)), gopacket.Payload(quote))
}

func withByte(b []byte, off int, v byte) []byte {
	b = slices.Clone(b)
	b[off] = v
	return b
}

func withAddr(b []byte, off int, addr string) []byte {
	b = slices.Clone(b)
	copy(b[off:], netip.MustParseAddr(addr).AsSlice())
	return b
}

// asICMP makes the TCP packet b one of ICMP of the given type.
func asICMP(b []byte, kind byte) []byte {
	if b[0]>>4 == 6 {
		return withByte(withByte(b, 6, protoICMPv6), 40, kind)
	}
	return withByte(withByte(b, 9, protoICMP), 20, kind)
}

// TestPutTooBigAnswers has what is answered and what must not be.
func TestPutTooBigAnswers(t *testing.T) {
	v4, v6 := dontFragment(t, 4, 100), dontFragment(t, 6, 100)
	routed := slices.Insert(slices.Clone(v6), 40, ProtoTCP, 0, 4, 1, 0, 0, 0, 0)
	routed[5], routed[6] = routed[5]+8, extRouting
	for _, tt := range []struct {
		name   string
		packet []byte
		from   netip.Addr
		answer bool
	}{
		{"IPv4", v4, node4, true},
		{"IPv6", v6, node6, true},
		{"IPv4 that may be fragmented", withByte(v4, 6, 0), node4, false},
		{"first fragment", withByte(v4, 6, 0x60), node4, true},
		{"later fragment", withByte(v4, 7, 1), node4, false},
		{"address of the other version", v4, node6, false},
		{"the other way round", v6, node4, false},
		{"mapped address", v6, netip.MustParseAddr("::ffff:10.1.1.1"), false},
		{"no address", v4, netip.Addr{}, false},
		{"from nowhere", withAddr(v4, 12, "0.0.0.0"), node4, false},
		{"from a group", withAddr(v4, 12, "224.0.0.1"), node4, false},
		{"from loopback", withAddr(v4, 12, "127.0.0.1"), node4, false},
		{"from everybody", withAddr(v4, 12, "255.255.255.255"), node4, false},
		{"to a group", withAddr(v4, 16, "239.1.2.3"), node4, false},
		{"to everybody", withAddr(v4, 16, "255.255.255.255"), node4, false},
		{"from nowhere, IPv6", withAddr(v6, 8, "::"), node6, false},
		{"from a group, IPv6", withAddr(v6, 8, "ff02::1"), node6, false},
		{"to a group, IPv6", withAddr(v6, 24, "ff0e::1"), node6, false},
		{"ping", asICMP(v4, 8), node4, true},
		{"unreachable", asICMP(v4, 3), node4, false},
		{"time exceeded", asICMP(v4, 11), node4, false},
		{"redirect", asICMP(v4, 5), node4, false},
		{"unknown ICMP", asICMP(v4, 200), node4, false},
		{"ping, IPv6", asICMP(v6, 128), node6, true},
		{"unreachable, IPv6", asICMP(v6, 1), node6, false},
		{"too big", asICMP(v6, 2), node6, false},
		{"redirect, IPv6", asICMP(v6, 137), node6, false},
		{"ICMP without a type", asICMP(v4, 8)[:20], node4, false},
		{"IPsec", withByte(v4, 9, extAuth), node4, true},
		{"routing header with hops to go", routed, node6, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if len(tt.packet) == 20 {
				tt.packet[3] = 20
			}
			before := string(tt.packet)
			n := PutTooBig(make([]byte, MaxTooBig), tt.packet, parse(t, tt.packet), tt.from, 1400)
			if (n > 0) != tt.answer {
				t.Errorf("%d bytes of answer, want one: %v", n, tt.answer)
			}
			if string(tt.packet) != before {
				t.Error("the packet was changed")
			}
		})
	}
}

// FuzzPutTooBig wants a sound packet to one host, or none, and never an answer to
// an answer.
func FuzzPutTooBig(f *testing.F) {
	for _, in := range inners(f, 20) {
		f.Add(in.packet, 1400)
	}
	f.Fuzz(func(t *testing.T, packet []byte, mtu int) {
		var ip IP
		if ParseIP(packet, &ip) != nil {
			return
		}
		from := node4
		if ip.Version == 6 {
			from = node6
		}
		dst := make([]byte, MaxTooBig)
		answer := dst[:PutTooBig(dst, packet, &ip, from, mtu)]
		if len(answer) == 0 {
			return
		}
		got := parse(t, answer)
		switch {
		case got.Len != len(answer) || got.Src != from || got.Dst != ip.Src:
			t.Fatalf("answer of %d bytes, %s to %s, says %d", len(answer), got.Src, got.Dst, got.Len)
		case got.Version == 4 && (slowSum(answer[:20], 0) != 0xffff || slowSum(answer[20:], 0) != 0xffff):
			t.Fatal("answer with a wrong checksum")
		case got.Version == 6 && slowSum(answer[40:], slowPseudoSum(got.Src, got.Dst, protoICMPv6, len(answer)-40)) != 0xffff:
			t.Fatal("answer with a wrong checksum")
		case PutTooBig(make([]byte, MaxTooBig), answer, got, from, mtu) != 0:
			t.Fatal("the answer is answered")
		}
	})
}
