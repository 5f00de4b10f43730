package encap

import (
	"math/rand/v2"
	"testing"
)

func TestFlowHashTellsFlowsApart(t *testing.T) {
	for _, version := range []int{4, 6} {
		base := tcpPacket(t, version, pattern(10))
		headerLen := parse(t, base).HeaderLen
		srcEnd, dstEnd := 15, 19 // last byte of either address
		protoOff := 9
		if version == 6 {
			srcEnd, dstEnd, protoOff = 23, 39, 6
		}
		for _, tt := range []struct {
			name string
			off  int
			same bool
		}{
			{"source address", srcEnd, false},
			{"destination address", dstEnd, false},
			{"source port", headerLen + 1, false},
			{"destination port", headerLen + 3, false},
			{"sequence number", headerLen + 7, true},
			{"payload", len(base) - 1, true},
			{"hop limit", map[int]int{4: 8, 6: 7}[version], true},
		} {
			other := append([]byte(nil), base...)
			other[tt.off] ^= 1
			if same := FlowHash(base, parse(t, base)) == FlowHash(other, parse(t, other)); same != tt.same {
				t.Errorf("IPv%d %s differs: same hash %v, want %v", version, tt.name, same, tt.same)
			}
		}
		udp := append([]byte(nil), base...)
		udp[protoOff] = ProtoUDP
		if FlowHash(base, parse(t, base)) == FlowHash(udp, parse(t, udp)) {
			t.Errorf("IPv%d: TCP and UDP have one hash", version)
		}
	}
}

// TestFragmentsShareAHash shows that all fragments of a datagram take one way.
func TestFragmentsShareAHash(t *testing.T) {
	first := udpPacket(t, 4, pattern(64))
	first[6] = 0x20
	last := udpPacket(t, 4, pattern(64))
	last[7] = 8
	copy(last[20:], "no ports here")
	a, b := FlowHash(first, parse(t, first)), FlowHash(last, parse(t, last))
	if a != b {
		t.Errorf("FlowHash of first and last fragment = %#x, %#x", a, b)
	}
	if q := QuickHash(first); q != a || QuickHash(last) != a {
		t.Errorf("QuickHash of fragments = %#x, %#x; want %#x", q, QuickHash(last), a)
	}
}

// TestQuickHashIsFlowHash has a worker and whatever hashes elsewhere agree.
func TestQuickHashIsFlowHash(t *testing.T) {
	options := tcpPacket(t, 4, pattern(3))
	options = append(options[:20], append(make([]byte, 8), options[20:]...)...) // end-of-list options
	options[0] += 2
	options[3] += 8
	for name, packet := range map[string][]byte{
		"TCP4": tcpPacket(t, 4, pattern(3)), "TCP6": tcpPacket(t, 6, pattern(3)),
		"UDP4": udpPacket(t, 4, pattern(3)), "UDP6": udpPacket(t, 6, pattern(3)),
		"IPv4 options":      options,
		"ports beyond":      unhexString(t, "4500001700000000"+"40110000"+addrs4+"123456"),
		"no payload":        unhexString(t, "60000000"+"0000"+"11"+"40"+addrs6),
		"ports in padding":  unhexString(t, "60000000"+"0000"+"11"+"40"+addrs6+"12345678"),
		"another protocol":  unhexString(t, "4500001c00000000"+"40010000"+addrs4+"0800123456789abc"),
		"padded IPv4 short": unhexString(t, "4500001400000000"+"40110000"+addrs4+"12345678"),
	} {
		if got, want := QuickHash(packet), FlowHash(packet, parse(t, packet)); got != want {
			t.Errorf("%s: QuickHash = %#x, FlowHash = %#x", name, got, want)
		}
	}
}

// TestSourcePortSpread shows that flows as they occur, neighbours in address and
// in port, spread over a host's ports about as well as random ones would.
func TestSourcePortSpread(t *testing.T) {
	const ports, flows = 64, 64 * 256
	for _, version := range []int{4, 6} {
		packet := tcpPacket(t, version, nil)
		headerLen := parse(t, packet).HeaderLen
		for name, vary := range map[string]func(i int){
			"source port":  func(i int) { packet[headerLen], packet[headerLen+1] = byte(i>>8), byte(i) },
			"even ports":   func(i int) { packet[headerLen], packet[headerLen+1] = byte(i>>7), byte(i<<1) },
			"both hosts":   func(i int) { packet[headerLen-1], packet[15] = byte(i), byte(i>>8) },
			"address only": func(i int) { packet[headerLen-2], packet[headerLen-1] = byte(i>>8), byte(i) },
		} {
			var counts [ports]int
			for i := range flows {
				vary(i)
				counts[SourcePort(QuickHash(packet), 0, ports-1)]++
			}
			for port, n := range counts {
				// The standard deviation of a random choice is 16.
				if want := flows / ports; n < want-90 || n > want+90 {
					t.Errorf("IPv%d, %s: port %d has %d flows, want about %d", version, name, port, n, want)
				}
			}
		}
	}
}

func TestSourcePort(t *testing.T) {
	for _, tt := range []struct {
		hash   uint32
		lo, hi uint16
		want   uint16
	}{
		{0, 32768, 60999, 32768},
		{1<<32 - 1, 32768, 60999, 60999},
		{1 << 31, 0, 65535, 32768},
		{1<<32 - 1, 0, 65535, 65535},
		{1<<32 - 1, 9, 9, 9},
		{1<<32 - 1, 10, 9, 10},
	} {
		if got := SourcePort(tt.hash, tt.lo, tt.hi); got != tt.want {
			t.Errorf("SourcePort(%#x, %d, %d) = %d, want %d", tt.hash, tt.lo, tt.hi, got, tt.want)
		}
	}
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 10_000 {
		hash, lo := rnd.Uint32(), uint16(rnd.Uint32())
		hi := lo + uint16(rnd.Uint32N(uint32(65536-int(lo))))
		if got := SourcePort(hash, lo, hi); got < lo || got > hi {
			t.Fatalf("SourcePort(%#x, %d, %d) = %d", hash, lo, hi, got)
		}
	}
}
