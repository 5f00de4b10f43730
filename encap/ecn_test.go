package encap

import (
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// withECN returns a packet with that ECN field and the DSCP of expedited forwarding.
func withECN(t *testing.T, version int, ecn ECN) []byte {
	t.Helper()
	l3 := network(version, layers.IPProtocolUDP)
	switch l := l3.(type) {
	case *layers.IPv4:
		l.TOS = 0xb8 | uint8(ecn)
	case *layers.IPv6:
		l.TrafficClass = 0xb8 | uint8(ecn)
		l.FlowLabel = 0xfffff
	}
	return build(t, l3, udpLayer(t, l3), gopacket.Payload(pattern(10)))
}

// TestEncapECN is the table of RFC 6040 section 4.1, figure 3, normal mode.
func TestEncapECN(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, inner := range []ECN{ECNNot, ECN1, ECN0, ECNCE} {
			if got := PacketECN(withECN(t, version, inner)); got != inner {
				t.Errorf("IPv%d: outer %d, want %d", version, got, inner)
			}
		}
	}
}

// TestDecapECN is the table of RFC 6040 section 4.2, figure 4.
func TestDecapECN(t *testing.T) {
	const drop = 0xff
	table := []struct {
		inner               ECN
		not, ect0, ect1, ce ECN // by the outer header, in the order of the figure
	}{
		{ECNNot, ECNNot, ECNNot, ECNNot, drop},
		{ECN0, ECN0, ECN0, ECN1, ECNCE},
		{ECN1, ECN1, ECN1, ECN1, ECNCE},
		{ECNCE, ECNCE, ECNCE, ECNCE, ECNCE},
	}
	for _, version := range []int{4, 6} {
		for _, row := range table {
			for outer, want := range map[ECN]ECN{ECNNot: row.not, ECN0: row.ect0, ECN1: row.ect1, ECNCE: row.ce} {
				t.Run(fmt.Sprintf("IPv%d/inner %d, outer %d", version, row.inner, outer), func(t *testing.T) {
					packet := withECN(t, version, row.inner)
					ok := DecapECN(packet, outer)
					if want == drop {
						want = row.inner
						if ok {
							t.Error("not dropped")
						}
					} else if !ok {
						t.Error("dropped")
					}
					// gopacket makes what must come out, its header checksum included.
					if string(packet) != string(withECN(t, version, want)) {
						t.Errorf("packet % x, want ECN %d and nothing else changed", packet[:20], want)
					}
				})
			}
		}
	}
}

// TestDecapECNKeepsDamage shows that a wrong header checksum stays wrong.
func TestDecapECNKeepsDamage(t *testing.T) {
	packet := withECN(t, 4, ECN0)
	packet[8]++
	if !DecapECN(packet, ECNCE) || PacketECN(packet) != ECNCE {
		t.Fatal("CE was not carried over")
	}
	if slowSum(packet[:20], 0) == 0xffff {
		t.Error("a damaged header was made to look sound")
	}
}

// TestUpdateChecksum has the words around which ones' complement has two zeros
// (RFC 1624 section 2): the result must verify as a fresh checksum does.
func TestUpdateChecksum(t *testing.T) {
	words := []uint16{0, 1, 0x00ff, 0x4500, 0x7fff, 0x8000, 0xfffe, 0xffff}
	for _, other := range words {
		for _, from := range words {
			for _, to := range words {
				field := ^Fold(0x4500 + uint64(other) + uint64(from))
				field = updateChecksum(field, from, to)
				if sum := Fold(0x4500 + uint64(other) + uint64(to) + uint64(field)); sum != 0xffff {
					t.Errorf("%#04x beside %#04x to %#04x: sum %#04x", from, other, to, sum)
				}
			}
		}
	}
}
