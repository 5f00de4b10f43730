package userspace

import (
	"bytes"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

func TestVnetHeader(t *testing.T) {
	b := make([]byte, 100)
	for name, o := range map[string]encap.Offload{
		"nothing": {},
		"partial": {Partial: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28},
		"TSO":     {GSO: encap.GSOTCPv4, Size: 1398, Partial: true, CsumStart: 20, CsumOffset: 16, HdrLen: 52},
		"TSO v6":  {GSO: encap.GSOTCPv6, Size: 1378, Partial: true, CsumStart: 40, CsumOffset: 16, HdrLen: 72},
		"USO":     {GSO: encap.GSOUDP, Size: 1000, Partial: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28},
	} {
		var h [vnetLen]byte
		encodeVnet(&h, &o)
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

func TestVnetHeaderRefused(t *testing.T) {
	for name, h := range map[string][vnetLen]byte{
		"checksum beyond the packet": {0: 1, 6: 90, 8: 9},
		"superpacket with complete":  {1: 1, 4: 100},
	} {
		if got := decodeVnet(h[:], make([]byte, 100)); got.GSO != gsoInvalid {
			t.Errorf("%s: %+v", name, got)
		}
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
