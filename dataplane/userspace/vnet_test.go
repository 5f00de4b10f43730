package userspace

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

func TestVnetHeader(t *testing.T) {
	v4, v6 := tcpPacket(podA, podB, 1, make([]byte, 100)), make([]byte, 100)
	v6[0], v6[6] = 0x60, encap.ProtoTCP
	for name, o := range map[string]encap.Offload{
		"nothing": {},
		"partial": {Partial: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28},
		"TSO":     {GSO: encap.GSOTCPv4, Size: 1398, Partial: true, CsumStart: 20, CsumOffset: 16, HdrLen: 52},
		"TSO v6":  {GSO: encap.GSOTCPv6, Size: 1378, Partial: true, CsumStart: 40, CsumOffset: 16, HdrLen: 72},
		"USO":     {GSO: encap.GSOUDP, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28},
	} {
		var h [vnetLen]byte
		encodeVnet(&h, &o)
		b := v4
		if o.CsumStart == 40 {
			b = v6
		}
		want := o
		want.HdrLen = 0 // not trusted
		if got := decodeVnet(h[:], b); got != want {
			t.Errorf("%s: %x is %+v, want %+v", name, h, got, want)
		}
		h[1] |= 0x80 // ECN goes along
		if got := decodeVnet(h[:], b); got != want {
			t.Errorf("%s with ECN: %x is %+v, want %+v", name, h, got, want)
		}
	}
}

// TestVnetHeaderRefused: a checksum is of what is behind the IP headers.
func TestVnetHeaderRefused(t *testing.T) {
	type header struct{ start, offset uint16 }
	v4 := tcpPacket(podA, podB, 1, make([]byte, 100))
	options := slices.Insert(bytes.Clone(v4), 20, 1, 1, 1, 1)
	options[0]++
	binary.BigEndian.PutUint16(options[2:], uint16(len(options)))
	v6 := make([]byte, 100)
	v6[0], v6[5], v6[6] = 0x60, 60, encap.ProtoUDP
	destination := bytes.Clone(v6) // with options for the destination, of eight bytes
	destination[6], destination[40] = 60, encap.ProtoUDP
	for name, tt := range map[string]struct {
		packet  []byte
		refused []header
		taken   []header
	}{
		"IPv4":                          {v4, []header{{0, 10}, {0, 12}, {6, 8}, {12, 40}, {19, 0}, {100, 100}, {130, 9}}, []header{{20, 16}, {20, 6}, {60, 6}}},
		"IPv4 with options":             {options, []header{{0, 12}, {20, 0}, {20, 16}, {23, 9}}, []header{{24, 16}}},
		"IPv6":                          {v6, []header{{0, 8}, {6, 8}, {6, 60}, {20, 16}, {39, 9}, {90, 9}}, []header{{40, 6}, {60, 6}}},
		"IPv6 with an extension header": {destination, []header{{6, 8}, {40, 2}, {40, 6}}, []header{{48, 6}}},
		"none":                          {make([]byte, 60), []header{{20, 6}, {40, 6}}, nil},
	} {
		for _, v := range append(tt.refused, tt.taken...) {
			var h [vnetLen]byte
			encodeVnet(&h, &encap.Offload{Partial: true, CsumStart: v.start, CsumOffset: v.offset})
			if got, want := decodeVnet(h[:], tt.packet).GSO == gsoInvalid, slices.Contains(tt.refused, v); got != want {
				t.Errorf("%s, a checksum from %d on at %d: refused %v, want %v", name, v.start, v.offset, got, want)
			}
		}
	}
	if h := [vnetLen]byte{1: 1, 4: 100}; decodeVnet(h[:], v4).GSO != gsoInvalid {
		t.Error("a superpacket with a complete checksum is taken")
	}
}

// TestMalformedSuperpacketsAreDropped has vnet headers that disagree with the packet.
func TestMalformedSuperpacketsAreDropped(t *testing.T) {
	tcp, udp := tcpPacket(podA, podB, 1, make([]byte, 5000)), udpPacket(podA, podB, 1, 2, make([]byte, 5000))
	for name, test := range map[string]struct {
		packet []byte
		o      encap.Offload
	}{
		"invalid":           {tcp, encap.Offload{GSO: gsoInvalid}},
		"UFO":               {udp, encap.Offload{GSO: 3, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 6}},
		"size 0":            {tcp, encap.Offload{GSO: encap.GSOTCPv4, Partial: true, CsumStart: 20, CsumOffset: 16}},
		"USO of TCP":        {tcp, encap.Offload{GSO: encap.GSOUDP, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 6}},
		"TSO of UDP":        {udp, encap.Offload{GSO: encap.GSOTCPv4, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 16}},
		"TSO v6 of v4":      {tcp, encap.Offload{GSO: encap.GSOTCPv6, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 16}},
		"wrong csum_start":  {tcp, encap.Offload{GSO: encap.GSOTCPv4, Size: 1000, Partial: true, CsumStart: 24, CsumOffset: 16}},
		"header of 0 bytes": {zeroDataOffset(tcp), encap.Offload{GSO: encap.GSOTCPv4, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 16}},
	} {
		a, _ := testPairOf(t, AllOffloads)
		a.LoadOffload(test.o, test.packet)
		a.Send(1)
		if s := a.Stats(); s.TxPackets != 0 || s.Drops[dataplane.DropBadHeader] != 1 {
			t.Errorf("%s: counted %+v", name, s)
		}
	}
}

func zeroDataOffset(tcp []byte) []byte {
	b := bytes.Clone(tcp)
	b[32] = 0
	return b
}
