package encap

import (
	"bytes"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// innerPacket is what goes into a frame.
type innerPacket struct {
	packet    []byte
	etherType uint16
}

// inners returns packets of both families and protocols, with payloads of about n
// bytes, and of none.
func inners(tb testing.TB, n int) map[string]innerPacket {
	tb.Helper()
	return map[string]innerPacket{
		"TCP4":       {tcpPacket(tb, 4, pattern(n)), EtherTypeIPv4},
		"UDP4":       {udpPacket(tb, 4, pattern(n+1)), EtherTypeIPv4},
		"TCP6":       {tcpPacket(tb, 6, pattern(n+1)), EtherTypeIPv6},
		"UDP6":       {udpPacket(tb, 6, pattern(n)), EtherTypeIPv6},
		"empty UDP4": {udpPacket(tb, 4, nil), EtherTypeIPv4},
		"empty TCP6": {tcpPacket(tb, 6, nil), EtherTypeIPv6},
	}
}

var vtepA, vtepB = MAC{0x0e, 1, 2, 3, 4, 5}, MAC{0x0e, 6, 7, 8, 9, 10}

// TestEncapReadByGopacket encapsulates here and has gopacket decode it.
func TestEncapReadByGopacket(t *testing.T) {
	tmpl := NewTemplate(0xabcdef, vtepB, vtepA)
	for name, in := range inners(t, 1000) {
		t.Run(name, func(t *testing.T) {
			datagram := make([]byte, HeaderLen, HeaderLen+len(in.packet))
			tmpl.Put(datagram, in.etherType)
			datagram = append(datagram, in.packet...)

			got := decode(t, datagram)
			if !got.vxlan.ValidIDFlag || got.vxlan.VNI != 0xabcdef || got.vxlan.GBPExtension || got.vxlan.GBPGroupPolicyID != 0 {
				t.Errorf("VXLAN = %+v", got.vxlan)
			}
			if !bytes.Equal(got.eth.DstMAC, vtepB[:]) || !bytes.Equal(got.eth.SrcMAC, vtepA[:]) || uint16(got.eth.EthernetType) != in.etherType {
				t.Errorf("Ethernet = %+v", got.eth)
			}
			ip := parse(t, in.packet)
			if got.l3src != ip.Src.String() || got.l3dst != ip.Dst.String() || got.proto != ip.Proto {
				t.Errorf("gopacket sees %s to %s, protocol %d; ParseIP %s to %s, %d",
					got.l3src, got.l3dst, got.proto, ip.Src, ip.Dst, ip.Proto)
			}
			if !bytes.Equal(got.payload, in.packet[ip.HeaderLen:]) {
				t.Error("payload differs")
			}
		})
	}
}

// decoded is what gopacket found.
type decoded struct {
	vxlan        layers.VXLAN
	eth          layers.Ethernet
	l3src, l3dst string
	proto        uint8
	payload      []byte
}

func decode(t *testing.T, datagram []byte) decoded {
	t.Helper()
	var d decoded
	var ip4 layers.IPv4
	var ip6 layers.IPv6
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeVXLAN, &d.vxlan, &d.eth, &ip4, &ip6)
	parser.IgnoreUnsupported = true
	var types []gopacket.LayerType
	if err := parser.DecodeLayers(datagram, &types); err != nil || len(types) != 3 {
		t.Fatalf("gopacket decodes %v: %v", types, err)
	}
	if types[2] == layers.LayerTypeIPv4 {
		d.l3src, d.l3dst, d.proto, d.payload = ip4.SrcIP.String(), ip4.DstIP.String(), uint8(ip4.Protocol), ip4.Payload
	} else {
		d.l3src, d.l3dst, d.proto, d.payload = ip6.SrcIP.String(), ip6.DstIP.String(), uint8(ip6.NextHeader), ip6.Payload
	}
	return d
}

// TestEncapByGopacketRead has gopacket encapsulate and decodes it here.
func TestEncapByGopacketRead(t *testing.T) {
	for name, in := range inners(t, 1000) {
		t.Run(name, func(t *testing.T) {
			datagram := build(t,
				&layers.VXLAN{ValidIDFlag: true, VNI: 0x123456},
				&layers.Ethernet{DstMAC: vtepB[:], SrcMAC: vtepA[:], EthernetType: layers.EthernetType(in.etherType)},
				gopacket.Payload(in.packet))

			vni, err := ParseVXLAN(datagram)
			if vni != 0x123456 || err != nil {
				t.Errorf("ParseVXLAN = %#x, %v", vni, err)
			}
			dst, src, etherType, err := ParseEthernet(datagram[VXLANLen:])
			if dst != vtepB || src != vtepA || etherType != in.etherType || err != nil {
				t.Errorf("ParseEthernet = %s, %s, %#x, %v", dst, src, etherType, err)
			}
			// gopacket pads Ethernet to 60 bytes, as a wire does.
			ip := parse(t, datagram[HeaderLen:])
			if !bytes.Equal(datagram[HeaderLen:][:ip.Len], in.packet) {
				t.Error("inner packet differs")
			}
			if !VerifyChecksum(datagram[HeaderLen:], ip) {
				t.Error("checksum made by gopacket is not right here")
			}
			// Ours must be the same bytes.
			tmpl := NewTemplate(0x123456, vtepB, vtepA)
			var header [HeaderLen]byte
			tmpl.Put(header[:], in.etherType)
			if !bytes.Equal(header[:], datagram[:HeaderLen]) {
				t.Errorf("header % x, gopacket's % x", header, datagram[:HeaderLen])
			}
		})
	}
}
