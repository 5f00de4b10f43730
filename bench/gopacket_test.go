package bench

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/overlayd/overlayd/dataplane/fib"
	"github.com/overlayd/overlayd/encap"
)

// The job of the benchmarks in this file is one and the same: an inner IP packet
// lies in memory; put the VXLAN and the inner Ethernet header in front of it. The
// outer UDP and IP headers are the kernel's, in both.

var (
	macLocal  = encap.MAC{0x0e, 0x2a, 0, 0, 0, 1}
	macRemote = encap.MAC{0x0e, 0x2a, 0, 0, 0, 2}
)

// inner returns an IPv4/UDP packet of n bytes to the second address of the first
// lease.
func inner(tb testing.TB, n int) []byte {
	tb.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: subnet(500, 2).AsSlice(), DstIP: subnet(0, 2).AsSlice()}
	udp := &layers.UDP{SrcPort: 4000, DstPort: 5000}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		tb.Fatalf("set network layer: %v", err)
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, ip, udp, gopacket.Payload(make([]byte, n-28))); err != nil {
		tb.Fatalf("serialize layers: %v", err)
	}
	return buf.Bytes()
}

// BenchmarkGopacketSerialize does the job by gopacket.SerializeLayers, as fast as
// its documentation says how: one buffer and one set of layers for all packets, no
// checksum to compute. Each packet is another slice, as in a forwarder, so it is
// boxed again. Its bytes are copied because SerializeLayers builds a packet from the end.
func BenchmarkGopacketSerialize(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			vxlan := &layers.VXLAN{ValidIDFlag: true, VNI: 1}
			eth := &layers.Ethernet{SrcMAC: macLocal[:], DstMAC: macRemote[:], EthernetType: layers.EthernetTypeIPv4}
			packets := [][]byte{inner(b, n), inner(b, n)}
			buf := gopacket.NewSerializeBufferExpectedSize(encap.HeaderLen+n, 0)
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for i := 0; b.Loop(); i++ {
				payload := gopacket.Payload(packets[i&1])
				if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, vxlan, eth, payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGopacketSerializeOuter builds the whole underlay packet by
// gopacket.SerializeLayers, as a program does that encapsulates with it: outer
// IPv4 and UDP with their lengths and checksums, VXLAN, inner Ethernet.
func BenchmarkGopacketSerializeOuter(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
				SrcIP: []byte{192, 0, 2, 2}, DstIP: []byte{192, 0, 2, 3}}
			udp := &layers.UDP{SrcPort: 40000, DstPort: encap.DefaultPort}
			if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
				b.Fatal(err)
			}
			vxlan := &layers.VXLAN{ValidIDFlag: true, VNI: 1}
			eth := &layers.Ethernet{SrcMAC: macLocal[:], DstMAC: macRemote[:], EthernetType: layers.EthernetTypeIPv4}
			packets := [][]byte{inner(b, n), inner(b, n)}
			opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
			buf := gopacket.NewSerializeBufferExpectedSize(28+encap.HeaderLen+n, 0)
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for i := 0; b.Loop(); i++ {
				if err := gopacket.SerializeLayers(buf, opts, ip, udp, vxlan, eth, gopacket.Payload(packets[i&1])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGopacketEncap does with gopacket what a packet needs besides: a
// DecodingLayerParser finds the destination, a table the peer.
func BenchmarkGopacketEncap(b *testing.B) {
	b.Run("1400", func(b *testing.B) {
		vxlan := &layers.VXLAN{ValidIDFlag: true}
		eth := &layers.Ethernet{SrcMAC: macLocal[:], DstMAC: macRemote[:], EthernetType: layers.EthernetTypeIPv4}
		packet := inner(b, 1400)
		var payload gopacket.SerializableLayer = gopacket.Payload(packet)
		buf := gopacket.NewSerializeBufferExpectedSize(encap.HeaderLen+len(packet), 0)
		var ip layers.IPv4
		parser := gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &ip)
		parser.IgnoreUnsupported = true
		decoded := make([]gopacket.LayerType, 0, 4)
		table := leaseTable()
		b.ReportAllocs()
		for b.Loop() {
			if err := parser.DecodeLayers(packet, &decoded); err != nil {
				b.Fatal(err)
			}
			p := table.Lookup(netip.AddrFrom4([4]byte(ip.DstIP)))
			vxlan.VNI = p.id
			if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, vxlan, eth, payload); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func leaseTable() *fib.Table[vtep] {
	table := new(fib.Table[vtep])
	table.Replace(leases(1000))
	return table
}

// BenchmarkHeaders does the job by encap. "put" is exactly that of
// BenchmarkGopacketSerialize; "lookup+put" finds out first where the packet goes
// among 1000 leases; "lookup+put+port" chooses the outer source port besides.
// None of them depends on the length of the packet: nothing of it is copied.
func BenchmarkHeaders(b *testing.B) {
	table := headerTable()
	buf := make([]byte, encap.HeaderLen+1400)
	packet := buf[encap.HeaderLen:]
	copy(packet, inner(b, len(packet)))
	b.Run("put", func(b *testing.B) {
		p := table.Lookup(subnet(0, 2))
		b.ReportAllocs()
		for b.Loop() {
			p.Put(buf, encap.EtherTypeIPv4)
		}
	})
	b.Run("lookup+put", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dst, etherType, ok := encap.Destination(packet)
			p := table.Lookup(dst)
			if !ok || p == nil {
				b.Fatal("no route")
			}
			p.Put(buf, etherType)
		}
	})
	b.Run("lookup+put+port", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dst, etherType, ok := encap.Destination(packet)
			p := table.Lookup(dst)
			if !ok || p == nil || encap.QuickHash(packet) == 0 {
				b.Fatal("no route, or no port")
			}
			p.Put(buf, etherType)
		}
	})
}

// headerTable returns a table of 1000 leases, each with its header.
func headerTable() *fib.Table[encap.Template] {
	routes := make([]fib.Route[encap.Template], 0, 1000)
	for _, r := range leases(cap(routes)) {
		header := encap.NewTemplate(r.Value.id, macRemote, macLocal)
		routes = append(routes, fib.Route[encap.Template]{Prefix: r.Prefix, Value: &header})
	}
	table := new(fib.Table[encap.Template])
	table.Replace(routes)
	return table
}
