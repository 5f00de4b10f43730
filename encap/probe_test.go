package encap

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// TestPutProbe has gopacket make the same packets.
func TestPutProbe(t *testing.T) {
	const nonce = 0xdeadbeef
	for _, size := range []int{48, 49, 1450} {
		for _, from := range []netip.Addr{node4, node6} {
			to := from.Next()
			b := bytes.Repeat([]byte{0xee}, size)
			etherType := PutProbe(b, from, to, nonce)
			buf := gopacket.NewSerializeBuffer()
			var all []gopacket.SerializableLayer
			want := uint16(EtherTypeIPv4)
			if from.Is4() {
				ip := &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolICMPv4, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
				all = append(all, ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(0, 0), Id: nonce >> 16, Seq: nonce & 0xffff}, gopacket.Payload(make([]byte, size-28)))
			} else {
				ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
				icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(129, 0)}
				if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
					t.Fatal(err)
				}
				all = append(all, ip, icmp, &layers.ICMPv6Echo{Identifier: nonce >> 16, SeqNumber: nonce & 0xffff}, gopacket.Payload(make([]byte, size-48)))
				want = EtherTypeIPv6
			}
			if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, buf.Bytes()) || etherType != want {
				t.Errorf("%d bytes from %s:\ngot  % x\nwant % x", size, from, b[:min(size, 60)], buf.Bytes()[:min(size, 60)])
			}
		}
	}
}
