package encap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

func TestOffloads(t *testing.T) {
	tcp4, tcp6 := tcpPacket(t, 4, pattern(100)), tcpPacket(t, 6, pattern(100))
	udp4, udp6 := udpPacket(t, 4, pattern(100)), udpPacket(t, 6, pattern(100))
	for _, tt := range []struct {
		name   string
		packet []byte
		want   Offload // the zero value if it is not ok
	}{
		{"TCP4", tcp4, Offload{GSOTCPv4, true, 50, 20, 16, 52, 0}},
		{"TCP6", tcp6, Offload{GSOTCPv6, true, 50, 40, 16, 72, 0}},
		{"UDP4", udp4, Offload{GSOUDP, true, 50, 20, 6, 28, 0}},
		{"UDP6", udp6, Offload{GSOUDP, true, 50, 40, 6, 48, 0}},
		{"fragment", withByte(tcp4, 6, 0x20), Offload{}},
		{"another protocol", withByte(tcp4, 9, 132), Offload{}},
		{"data offset too small", withByte(tcp4, 32, 0x40), Offload{}},
		{"data offset behind the packet", withByte(withByte(tcp4, 3, 72), 32, 0xf0), Offload{}},
		{"TCP cut short", withByte(tcp4, 3, 39), Offload{}},
		{"UDP length too small", withByte(udp4, 25, 50), Offload{}},
		{"UDP cut short", withByte(udp4, 3, 27), Offload{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packet := slices.Clone(tt.packet)
			ip := parse(t, packet)
			got, ok := SuperOffload(packet, ip, 50)
			if got != tt.want || ok != (tt.want != Offload{}) {
				t.Errorf("SuperOffload = %+v, %v; want %+v", got, ok, tt.want)
			}
			if ok != IsPartial(packet, ip) {
				t.Errorf("checksum partial: %v, want %v", !ok, ok)
			}
			if !ok && string(packet) != string(tt.packet) {
				t.Error("the packet was changed")
			}
			ordinary := tt.want
			ordinary.GSO, ordinary.Size = GSONone, 0
			if got, ok := PartialOffload(packet, ip); got != ordinary || ok != (tt.want != Offload{}) {
				t.Errorf("PartialOffload = %+v, %v; want %+v", got, ok, ordinary)
			}
		})
	}
	if _, ok := SuperOffload(slices.Clone(tcp4), parse(t, tcp4), 0); ok {
		t.Error("SuperOffload took segments of 0 bytes")
	}
}

// TestComplete completes the partial checksums of all kinds of packets. CompleteChecksum finds them by
// itself.
func TestComplete(t *testing.T) {
	zeroSum := udpPacket(t, 4, []byte{0, 0})
	binary.BigEndian.PutUint16(zeroSum[28:], binary.BigEndian.Uint16(zeroSum[26:])) // its sum complements to 0
	for name, b := range map[string][]byte{
		"TCP": tcpPacket(t, 4, pattern(99)), "TCP over IPv6": tcpPacket(t, 6, pattern(100)),
		"UDP": udpPacket(t, 4, pattern(99)), "UDP over IPv6": udpPacket(t, 6, nil), "UDP, sum 0": zeroSum,
	} {
		var ip IP
		if err := ParseIP(b, &ip); err != nil {
			t.Fatal(err)
		}
		putPartial(b, &ip)
		o, ok := PartialOffload(b, &ip)
		want := bytes.Clone(b)
		CompleteChecksum(want, &ip)
		if o.Complete(b); !ok || !bytes.Equal(b, want) || !VerifyChecksum(b, &ip) {
			t.Errorf("%s: got %x, want %x", name, b, want)
		}
	}
}

// TestSplitOffload splits by a vnet header, of which some contradict the packet.
func TestSplitOffload(t *testing.T) {
	packet := tcpPacket(t, 4, pattern(3000))
	good := Offload{GSO: GSOTCPv4, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 16}
	for _, tt := range []struct {
		name   string
		packet []byte
		change func(o *Offload)
		err    error
	}{
		{"good", packet, func(o *Offload) {}, nil},
		{"header length of all that was linear", packet, func(o *Offload) { o.HdrLen = 500 }, nil},
		{"no superpacket", packet, func(o *Offload) { o.GSO = GSONone }, ErrNoSplit},
		{"unknown kind", packet, func(o *Offload) { o.GSO = 3 }, ErrNoSplit},
		{"another IP version", packet, func(o *Offload) { o.GSO = GSOTCPv6 }, ErrNoSplit},
		{"another IP version, IPv6", tcpPacket(t, 6, pattern(3000)), func(o *Offload) { o.CsumStart = 40 }, ErrNoSplit},
		{"another protocol", packet, func(o *Offload) { o.GSO = GSOUDP }, ErrNoSplit},
		{"another offset", packet, func(o *Offload) { o.CsumStart = 24 }, ErrNoSplit},
		{"no size", packet, func(o *Offload) { o.Size = 0 }, ErrMaxLen},
		{"not IP", make([]byte, 100), func(o *Offload) {}, ErrIP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := good
			tt.change(&o)
			var s Splitter
			if err := s.InitOffload(tt.packet, o); !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			want := 0
			if tt.err == nil {
				want = 3
			}
			if got := collect(t, &s); s.Segments() != want || len(got) != want {
				t.Errorf("%d segments, want %d", len(got), want)
			}
		})
	}
}
