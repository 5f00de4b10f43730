package encap

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// slowSum is Sum as RFC 1071 section 1 describes it, word by word.
func slowSum(b []byte, initial uint16) uint16 {
	sum := uint32(initial)
	for i := range b {
		if i%2 == 0 {
			sum += uint32(b[i]) << 8
		} else {
			sum += uint32(b[i])
		}
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

// TestSumExampleOfRFC1071 is the example of section 3 of the RFC.
func TestSumExampleOfRFC1071(t *testing.T) {
	if got := Sum(unhexString(t, "0001f203f4f5f6f7"), 0); got != 0xddf2 {
		t.Errorf("Sum = %#04x, want 0xddf2", got)
	}
}

// TestSumAllLengths compares every length around the unrolled loops, at every
// alignment, with random bytes and with those that carry most.
func TestSumAllLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	random, ones := make([]byte, 400), make([]byte, 400)
	for i := range random {
		random[i], ones[i] = byte(rnd.Uint32()), 0xff
	}
	for _, data := range [][]byte{random, ones, make([]byte, 400)} {
		for off := range 8 {
			for n := range 380 {
				b := data[off : off+n]
				for _, initial := range []uint16{0, 1, 0x1234, 0xffff} {
					if got, want := Sum(b, initial), slowSum(b, initial); got != want {
						t.Fatalf("Sum of %d bytes from %d, initial %#04x = %#04x, want %#04x", n, off, initial, got, want)
					}
				}
			}
		}
	}
}

// TestSumAllAlignments has every length up to 4096 at every alignment to a cache
// line. The wanted sum grows with the length, or this would take minutes.
func TestSumAllAlignments(t *testing.T) {
	const longest, alignments = 4096, 64
	data := make([]byte, longest+alignments)
	rnd := rand.New(rand.NewPCG(7, 8))
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for off := range alignments {
		want := uint16(0x5678) // of the whole words
		for n := range longest + 1 {
			b := data[off : off+n]
			odd := n &^ 1
			if got, want := Sum(b, 0x5678), slowSum(b[odd:], want); got != want {
				t.Fatalf("Sum of %d bytes from %d = %#04x, want %#04x", n, off, got, want)
			}
			if n%2 == 1 {
				want = slowSum(data[off+odd:off+odd+2], want)
			}
		}
	}
}

func TestFold(t *testing.T) {
	for _, tt := range []struct {
		sum  uint64
		want uint16
	}{
		{0, 0}, {1, 1}, {0xffff, 0xffff}, {0x10000, 1}, {0x1ffff, 1}, {1<<64 - 1, 0xffff},
		{1 << 63, 0x8000}, {0xffff_0000_0000_0001, 1}, {0xfffe_ffff_ffff_ffff, 0xfffe},
	} {
		if got := Fold(tt.sum); got != tt.want {
			t.Errorf("Fold(%#x) = %#04x, want %#04x", tt.sum, got, tt.want)
		}
	}
}

// slowPseudoSum sums the pseudo-header of RFC 8200 section 8.1, which differs from
// that of IPv4 by zeros only.
func slowPseudoSum(src, dst netip.Addr, proto uint8, length int) uint16 {
	header := append(src.AsSlice(), dst.AsSlice()...)
	header = binary.BigEndian.AppendUint32(header, uint32(length))
	header = append(header, 0, 0, 0, proto)
	return slowSum(header, 0)
}

func TestPseudoSum(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, length := range []int{0, 8, 20, 65515, 65536} {
			packet := tcpPacket(t, version, nil)
			ip := parse(t, packet)
			if got, want := pseudoSum(packet, ip.Proto, length), slowPseudoSum(ip.Src, ip.Dst, ProtoTCP, length); got != want {
				t.Errorf("IPv%d, length %d: pseudoSum = %#04x, want %#04x", version, length, got, want)
			}
		}
	}
}

// eachChecksum calls f with a packet of each protocol and family, of even and odd
// length, and with the offset of its checksum.
func eachChecksum(t *testing.T, f func(t *testing.T, packet []byte, field int)) {
	for _, version := range []int{4, 6} {
		for _, n := range []int{0, 1, 2, 33, 1400} {
			headerLen := map[int]int{4: 20, 6: 40}[version]
			t.Run(fmt.Sprintf("TCP/IPv%d/%d", version, n), func(t *testing.T) {
				f(t, tcpPacket(t, version, pattern(n)), headerLen+tcpChecksumOff)
			})
			t.Run(fmt.Sprintf("UDP/IPv%d/%d", version, n), func(t *testing.T) {
				f(t, udpPacket(t, version, pattern(n)), headerLen+udpChecksumOff)
			})
		}
	}
}

// makePartial replaces the checksum of packet, as a kernel does.
func makePartial(packet []byte, ip *IP, field int) {
	binary.BigEndian.PutUint16(packet[field:], slowPseudoSum(ip.Src, ip.Dst, ip.Proto, ip.Len-ip.HeaderLen))
}

func TestVerifyChecksum(t *testing.T) {
	eachChecksum(t, func(t *testing.T, packet []byte, field int) {
		packet = append(packet, 0xaa, 0xbb, 0xcc) // padding
		ip := parse(t, packet)
		if !VerifyChecksum(packet, ip) || IsPartial(packet, ip) {
			t.Errorf("verified %v, partial %v; want true, false", VerifyChecksum(packet, ip), IsPartial(packet, ip))
		}
		for i := ip.HeaderLen; i < ip.Len; i++ {
			if i == ip.HeaderLen+4 && ip.Proto == ProtoUDP {
				i += 2 // the length: another length is another datagram
			}
			packet[i] ^= 0x10
			if VerifyChecksum(packet, ip) {
				t.Errorf("byte %d damaged and not noticed", i)
			}
			packet[i] ^= 0x10
		}
	})
}

// TestCompleteChecksum makes the checksum that gopacket computed partial and
// wants it back.
func TestCompleteChecksum(t *testing.T) {
	eachChecksum(t, func(t *testing.T, packet []byte, field int) {
		ip := parse(t, packet)
		want := binary.BigEndian.Uint16(packet[field:])
		if CompleteChecksum(packet, ip) {
			t.Error("complete checksum was taken for a partial one")
		}
		makePartial(packet, ip, field)
		if !IsPartial(packet, ip) {
			t.Error("IsPartial = false of a partial checksum")
		}
		if !CompleteChecksum(packet, ip) {
			t.Error("CompleteChecksum = false of a partial checksum")
		}
		if got := binary.BigEndian.Uint16(packet[field:]); got != want {
			t.Errorf("checksum completed to %#04x, want %#04x", got, want)
		}
	})
}

func TestCompleteChecksumKeepsDamage(t *testing.T) {
	packet := tcpPacket(t, 4, pattern(100))
	packet[90] ^= 1
	ip := parse(t, packet)
	if CompleteChecksum(packet, ip) || VerifyChecksum(packet, ip) {
		t.Error("a damaged packet was made to look sound")
	}
}

// TestCompleteChecksumNeverZero finds a UDP payload whose sum is all ones: the
// field must then be all ones too, for 0 would mean: no checksum.
func TestCompleteChecksumNeverZero(t *testing.T) {
	for _, version := range []int{4, 6} {
		packet := udpPacket(t, version, []byte{0, 0})
		ip := parse(t, packet)
		field := ip.HeaderLen + udpChecksumOff
		copy(packet[ip.HeaderLen+udpLen:], packet[field:field+2]) // what is missing to all ones
		makePartial(packet, ip, field)
		if !CompleteChecksum(packet, ip) {
			t.Fatalf("IPv%d: not partial", version)
		}
		if got := binary.BigEndian.Uint16(packet[field:]); got != 0xffff || !VerifyChecksum(packet, ip) {
			t.Errorf("IPv%d: field %#04x, want 0xffff and right", version, got)
		}
	}
}

// TestChecksumNotLocated has the packets whose checksum must be left alone, each
// with a field that would look partial.
func TestChecksumNotLocated(t *testing.T) {
	udp4, udp6 := udpPacket(t, 4, pattern(20)), udpPacket(t, 6, pattern(20))
	for _, tt := range []struct {
		name   string
		packet []byte
		change func(packet []byte)
	}{
		{"first fragment", udp4, func(b []byte) { b[6] |= 0x20 }},
		{"last fragment", udp4, func(b []byte) { b[7] = 3 }},
		{"UDP without checksum", udp4, func(b []byte) { b[26], b[27] = 0, 0 }},
		{"UDP without checksum over IPv6", udp6, func(b []byte) { b[46], b[47] = 0, 0 }},
		{"UDP length beyond the packet", udp4, func(b []byte) { b[25]++ }},
		{"UDP length below its header", udp4, func(b []byte) { b[25] = 7 }},
		{"another protocol", udp4, func(b []byte) { b[9] = 132 }},
		{"TCP shorter than its header", udpPacket(t, 4, pattern(11)), func(b []byte) { b[9] = ProtoTCP }},
		{"UDP shorter than its header", udp4, func(b []byte) { b[3] = 20 + 7 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packet := append([]byte(nil), tt.packet...)
			makePartial(packet, parse(t, packet), parse(t, packet).HeaderLen+udpChecksumOff)
			tt.change(packet)
			ip, before := parse(t, packet), string(packet)
			if IsPartial(packet, ip) || CompleteChecksum(packet, ip) || VerifyChecksum(packet, ip) || string(packet) != before {
				t.Error("checksum was touched, or found")
			}
		})
	}
}

// TestUDPShorterThanPacket shows that the UDP length counts: the kernel trims
// the datagram to it.
func TestUDPShorterThanPacket(t *testing.T) {
	packet := udpPacket(t, 4, pattern(20))
	packet = append(packet, 1, 2, 3)
	packet[3] += 3 // of the IP packet, which now has 3 bytes behind its datagram
	if ip := parse(t, packet); !VerifyChecksum(packet, ip) {
		t.Error("bytes behind the datagram were summed")
	}
}
