package encap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// TestOuterIsThatOfGopacket compares the outer headers with those that gopacket makes.
func TestOuterIsThatOfGopacket(t *testing.T) {
	for _, test := range []struct {
		src, dst string
		df       bool
		fields   OuterFields
		n        int
	}{
		{"192.0.2.1", "192.0.2.2", false, OuterFields{Port: 40000, ID: 65535, ECN: ECN0}, 60000},
		{"192.0.2.1", "255.255.255.254", true, OuterFields{Port: 1, ID: 7, ECN: ECNCE}, 22},
		{"2001:db8::1", "2001:db8::2", true, OuterFields{Port: 65535, ECN: ECN1}, 60000},
		{"fd00::1", "ff00:ffff:ffff:ffff::2", false, OuterFields{Port: 3, ID: 1}, 0},
	} {
		src, dst := netip.MustParseAddr(test.src), netip.MustParseAddr(test.dst)
		o := NewOuter(src, netip.AddrPortFrom(dst, DefaultPort), 64, test.df)
		got := bytes.Repeat([]byte{0xaa}, o.Len()) // nothing of it may stay
		o.Put(got, test.n, test.fields)
		want := outerByGopacket(t, src, dst, test.df, test.fields, test.n)
		if !bytes.Equal(got, want) {
			t.Errorf("%s to %s:\ngot  %x\nwant %x", src, dst, got, want)
		}
		if o.UDP() != o.Len()-8 {
			t.Errorf("UDP header at %d of %d", o.UDP(), o.Len())
		}
	}
}

// outerByGopacket makes the headers with a partial UDP checksum.
func outerByGopacket(t *testing.T, src, dst netip.Addr, df bool, f OuterFields, n int) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
	ip4 := &layers.IPv4{Version: 4, TOS: uint8(f.ECN), Id: f.ID, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	if df {
		ip4.Flags = layers.IPv4DontFragment
	}
	ip6 := &layers.IPv6{Version: 6, TrafficClass: uint8(f.ECN), NextHeader: layers.IPProtocolUDP, HopLimit: 64, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	var ip gopacket.SerializableLayer = ip4
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	if src.Is6() {
		eth.EthernetType, ip = layers.EthernetTypeIPv6, ip6
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(f.Port), DstPort: DefaultPort}
	b := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(b, options, eth, ip, udp, gopacket.Payload(make([]byte, n))); err != nil {
		// The sum of UDP needs a network layer; the field is made here anyway.
		options.ComputeChecksums = false
		if err := gopacket.SerializeLayers(b, options, eth, ip, udp, gopacket.Payload(make([]byte, n))); err != nil {
			t.Fatal(err)
		}
		if src.Is4() {
			h := b.Bytes()[14:34]
			binary.BigEndian.PutUint16(h[10:], ^SumPortable(h, 0))
		}
	}
	head := b.Bytes()[:len(b.Bytes())-n]
	u := head[len(head)-8:]
	pseudo = append(pseudo, 0, 17, u[4], u[5])
	binary.BigEndian.PutUint16(u[6:], SumPortable(pseudo, 0))
	return head
}
