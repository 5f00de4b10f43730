package encap

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// FuzzDecap takes a datagram from the underlay through every step of the way in,
// as the userspace dataplane does.
func FuzzDecap(f *testing.F) {
	tmpl := NewTemplate(1, vtepB, vtepA)
	for _, in := range inners(f, 20) {
		datagram := make([]byte, HeaderLen)
		tmpl.Put(datagram, in.etherType)
		datagram = append(datagram, in.packet...)
		f.Add(datagram)
		if ip := parse(f, in.packet); ip.Proto == ProtoTCP {
			partial := append([]byte(nil), datagram...)
			makePartial(partial[HeaderLen:], ip, ip.HeaderLen+tcpChecksumOff)
			f.Add(partial)
		}
	}
	f.Fuzz(func(t *testing.T, datagram []byte) {
		vni, err := ParseVXLAN(datagram)
		if err != nil {
			return
		}
		var again [VXLANLen]byte
		if PutVXLAN(again[:], vni); string(again[:]) != string(datagram[:VXLANLen]) {
			t.Fatalf("header % x was accepted, and is % x when written", datagram[:VXLANLen], again)
		}
		if _, _, _, err := ParseEthernet(datagram[VXLANLen:]); err == nil {
			fuzzPacket(t, datagram[HeaderLen:])
		}
	})
}

// FuzzParseIP does the same for the inner packet alone.
func FuzzParseIP(f *testing.F) {
	for _, in := range inners(f, 20) {
		f.Add(in.packet)
	}
	for _, s := range []string{
		"4600001c00002000" + "40110000" + addrs4 + "0101010100000000",
		"60000000" + "0020" + "00" + "40" + addrs6 + "2c00000000000000" + "3c00000100000000" + "1100000000000000" + "0000000000000000",
		"60000000" + "0018" + "33" + "40" + addrs6 + "2b02000000000000" + "0000000000000000" + "1100000100000000",
	} {
		f.Add(unhexString(f, s))
	}
	f.Fuzz(fuzzPacket)
}

func addr4(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// fuzzPacket checks what the functions on a packet promise of each other.
func fuzzPacket(t *testing.T, b []byte) {
	var ip IP
	err := ParseIP(b, &ip)
	dst, etherType, ok := Destination(b)
	if ok {
		QuickHash(b)
	}
	plain := ok && b[0] == 0x45
	src4, dst4, ok4 := Ends4(b)
	if ok4 != plain || ok4 && (Source(b, etherType) != addr4(src4) || dst != addr4(dst4)) {
		t.Fatalf("Ends4 finds %s, %s, %v; Destination %s, %v", addr4(src4), addr4(dst4), ok4, dst, ok)
	}
	if err != nil {
		return
	}
	switch {
	case !ok || dst != ip.Dst:
		t.Fatalf("ParseIP finds %s, Destination %s, %v", ip.Dst, dst, ok)
	case ip.HeaderLen < ipv4MinLen || ip.HeaderLen > ip.Len || ip.Len > len(b):
		t.Fatalf("header %d, packet %d, buffer %d bytes", ip.HeaderLen, ip.Len, len(b))
	case !ip.First && !ip.Fragment:
		t.Fatal("neither the first fragment nor a fragment")
	case ip.Version == 4 && QuickHash(b) != FlowHash(b, &ip):
		t.Fatal("QuickHash is not FlowHash")
	}
	FlowHash(b, &ip)

	before := string(b)
	partial := IsPartial(b, &ip)
	if CompleteChecksum(b, &ip) != partial {
		t.Fatal("IsPartial and CompleteChecksum disagree")
	}
	if partial && !VerifyChecksum(b, &ip) {
		t.Fatal("a completed checksum is not right")
	}
	if !partial && string(b) != before {
		t.Fatal("a packet without a partial checksum was changed")
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint16(0))
	f.Add(pattern(150), uint16(0xffff))
	f.Add(pattern(1399), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, initial uint16) {
		if got, want := Sum(b, initial), slowSum(b, initial); got != want {
			t.Errorf("Sum = %#04x, want %#04x", got, want)
		}
		if got, want := SumPortable(b, initial), slowSum(b, initial); got != want {
			t.Errorf("SumPortable = %#04x, want %#04x", got, want)
		}
		even := len(b) / 2 &^ 1
		if got := Sum(b[even:], Sum(b[:even], initial)); got != Sum(b, initial) {
			t.Errorf("in two parts %#04x, in one %#04x", got, Sum(b, initial))
		}
	})
}

// FuzzSplit splits whatever InitTCP takes, and checks that the segments are sound
// and carry the payload unchanged.
func FuzzSplit(f *testing.F) {
	f.Add(tcpPacket(f, 4, pattern(70)), uint16(82))
	f.Add(tcpPacket(f, 6, pattern(33)), uint16(90))
	f.Add(tcpPacket(f, 4, nil), uint16(60))
	f.Fuzz(func(t *testing.T, packet []byte, maxLen uint16) {
		before := string(packet)
		var s Splitter
		if err := s.InitTCP(packet, int(maxLen)); err == nil {
			n := s.Segments()
			segments := collect(t, &s)
			if len(segments) != n {
				t.Fatalf("%d segments, %d announced", len(segments), n)
			}
			checkSplit(t, packet, segments, int(maxLen))
		}
		if err := s.InitUDP(packet, int(maxLen)); err == nil {
			for i, segment := range collect(t, &s) {
				if ip := parse(t, segment); ip.Len != len(segment) {
					t.Fatalf("datagram %d has %d bytes and says %d", i, len(segment), ip.Len)
				}
			}
		}
		if string(packet) != before {
			t.Fatal("the packet was changed")
		}
	})
}
