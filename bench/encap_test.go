//go:build linux

package bench

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// benchPeers is the number of peers, one /24 each, that a node knows.
const benchPeers = 1000

// node makes node i of a full mesh: 10.0.0.0/8 in /24s, node i has the i-th.
func node(tb testing.TB, i int) *userspace.Memory { return nodeWith(tb, i, nil) }

// nodeWith is node with captures.
func nodeWith(tb testing.TB, i int, hub *capture.Hub) *userspace.Memory {
	m := newNode(i, hub)
	w := dataplane.Wanted{MTU: 1450, Subnets: []netip.Prefix{netip.PrefixFrom(overlay(i, 0), 24)}}
	for p := range benchPeers {
		if p != i {
			w.Peers = append(w.Peers, dataplane.Peer{VTEP: newNode(p, nil).VTEPs()[0], Subnets: []netip.Prefix{netip.PrefixFrom(overlay(p, 0), 24)}})
		}
	}
	if err := m.Sync(w); err != nil {
		tb.Fatal(err)
	}
	return m
}

func newNode(i int, hub *capture.Hub) *userspace.Memory {
	addr := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	return userspace.NewMemory(userspace.Config{Underlays: []dataplane.Underlay{{Local: addr, Public: addr}}, VNI: 1, Port: 8472, MTU: 1450, Captures: hub})
}

// spread returns one packet for each of 256 peers, in an order without a pattern.
func spread(from, size int, packet func(i int) (src, dst netip.Addr)) [][]byte {
	packets := make([][]byte, 256)
	for i := range packets {
		src, dst := packet((i*601 + from + 1) % benchPeers)
		packets[i] = udpPacket(src, dst, size)
	}
	return packets
}

func report(b *testing.B, size int) {
	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	b.ReportMetric(ns, "ns/packet")
	b.ReportMetric(float64(size)*8/ns, "Gbit/s")
	b.ReportMetric(0, "ns/op")
	b.ReportAllocs()
}

// BenchmarkEncap is the sending worker of the userspace dataplane, from the
// device's packet to the datagram: bounds check, lookup among 1000 peers, headers,
// counting. No system call and no copy of the payload.
func BenchmarkEncap(b *testing.B) {
	for _, size := range []int{64, 1400} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := node(b, 0)
			m.Load(spread(0, size, func(i int) (src, dst netip.Addr) { return overlay(0, 5), overlay(i, 7) })...)
			m.Send(1000)
			b.ResetTimer()
			m.Send(b.N)
			b.StopTimer()
			if got := m.Stats().TxPackets; got != uint64(b.N)+1000 {
				b.Fatalf("%d of %d packets sent", got, b.N+1000)
			}
			report(b, size)
		})
	}
}

// BenchmarkCapture is BenchmarkEncap while somebody captures 128 bytes of each packet: what is copied, and what is lost
// because the ring is full.
func BenchmarkCapture(b *testing.B) {
	for _, full := range []bool{false, true} {
		b.Run(map[bool]string{false: "copied", true: "full"}[full], func(b *testing.B) {
			var hub capture.Hub
			m := nodeWith(b, 0, &hub)
			m.Load(spread(0, 1400, func(i int) (src, dst netip.Addr) { return overlay(0, 5), overlay(i, 7) })...)
			c, err := hub.Start(capture.Filter{Snap: 128})
			if err != nil {
				b.Fatal(err)
			}
			const burst = 10_000
			for m.Send(burst); full && c.Lost() == 0; m.Send(burst) {
			}
			buf := make([]byte, 0, burst*256)
			b.ResetTimer()
			for n := b.N; n > 0; n -= burst {
				m.Send(min(n, burst))
				if !full {
					b.StopTimer()
					buf = c.Append(buf[:0], cap(buf))
					b.StartTimer()
				}
			}
			b.StopTimer()
			report(b, 1400)
		})
	}
}

// BenchmarkDecap is the receiving worker, from the datagram to the packet for the
// device: VTEP, VXLAN, Ethernet and IP checks, source validation, search for a
// partial checksum, counting.
func BenchmarkDecap(b *testing.B) {
	for _, size := range []int{64, 1400} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := node(b, 0)
			m.LoadDatagrams(datagrams(b, size)...)
			m.Receive(1000)
			b.ResetTimer()
			m.Receive(b.N)
			b.StopTimer()
			if got := m.Stats().RxPackets; got != uint64(b.N)+1000 {
				b.Fatalf("%d of %d packets delivered", got, b.N+1000)
			}
			report(b, size)
		})
	}
}

// datagrams returns what 64 peers send to node 0.
func datagrams(tb testing.TB, size int) (ds []carrier.Arrival) {
	for i := 1; i <= 64; i++ {
		peer := node(tb, i)
		peer.Load(udpPacket(overlay(i, 7), overlay(0, 5), size))
		peer.OnDatagram = func(d []byte, _ netip.Addr) {
			ds = append(ds, carrier.Arrival{Payload: append([]byte(nil), d...), From: peer.VTEPs()[0].Addr})
		}
		peer.Send(1)
	}
	return ds
}
