package encap

import "testing"

func TestWireLenAndFragmentable(t *testing.T) {
	packet := func(first, flags, dataOffset byte, n int) []byte {
		b := make([]byte, n)
		b[0], b[6], b[32], b[52] = first, flags, dataOffset<<4, dataOffset<<4 // TCP behind 20 or 40 bytes
		return b
	}
	const v4, v6, df = 0x45, 0x60, 0x40
	for _, tt := range []struct {
		name         string
		o            Offload
		b            []byte
		length       int
		fragmentable bool
	}{
		{"IPv4", Offload{}, packet(v4, 0, 0, 1400), 1400, true},
		{"IPv4 with DF", Offload{}, packet(v4, df, 0, 1400), 1400, false},
		{"IPv6 of the least MTU", Offload{}, packet(v6, 0, 0, 1280), 1280, true},
		{"IPv6 above it", Offload{}, packet(v6, 0, 0, 1281), 1281, false},
		{"partial checksum only", Offload{Partial: true, CsumStart: 20, Size: 9}, packet(v4, 0, 5, 1400), 1400, true},
		{"TCP superpacket", Offload{GSO: GSOTCPv4, CsumStart: 20, Size: 1000}, packet(v4, df, 5, 9000), 1040, false},
		{"TCP options", Offload{GSO: GSOTCPv4, CsumStart: 20, Size: 1000}, packet(v4, 0, 8, 9000), 1052, true},
		{"short TCP superpacket", Offload{GSO: GSOTCPv4, CsumStart: 20, Size: 1000}, packet(v4, 0, 5, 500), 500, true},
		{"truncated TCP header", Offload{GSO: GSOTCPv4, CsumStart: 50, Size: 1000}, packet(v4, 0, 5, 60), 60, true},
		{"IPv6 superpacket with short segments", Offload{GSO: GSOTCPv6, CsumStart: 40, Size: 1220}, packet(v6, 0, 5, 9000), 1280, true},
		{"IPv6 superpacket with long ones", Offload{GSO: GSOTCPv6, CsumStart: 40, Size: 1221}, packet(v6, 0, 5, 9000), 1281, false},
		{"UDP superpacket", Offload{GSO: GSOUDP, CsumStart: 20, Size: 1000}, packet(v4, 0, 15, 9000), 1028, true},
	} {
		if got := tt.o.WireLen(tt.b); got != tt.length {
			t.Errorf("%s: length %d, want %d", tt.name, got, tt.length)
		}
		if got := tt.o.Fragmentable(tt.b); got != tt.fragmentable {
			t.Errorf("%s: fragmentable %v, want %v", tt.name, got, tt.fragmentable)
		}
	}
}
