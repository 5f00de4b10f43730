//go:build linux

package bench

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/userspace"
	"github.com/overlayd/overlayd/encap"
)

// superpacketMSS is the payload of a segment in an overlay with MTU 1450 and TCP
// timestamps.
const superpacketMSS = 1398

// fastNode is node with everything that a TUN device and UDP sockets offer.
func fastNode(tb testing.TB, i, peer int) *userspace.Memory {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, 0, byte(i)}) }
	config := func(i int) userspace.Config {
		return userspace.Config{Underlays: []dataplane.Underlay{{Local: addr(i), Public: addr(i)}}, VNI: 1, Port: 8472, MTU: 1450, Offloads: userspace.AllOffloads}
	}
	m := userspace.NewMemory(config(i))
	other := userspace.NewMemory(config(peer)).VTEPs()[0]
	w := dataplane.Wanted{MTU: 1450, Subnets: []netip.Prefix{netip.PrefixFrom(overlay(i, 0), 24)}, Peers: []dataplane.Peer{{VTEP: other, Subnets: []netip.Prefix{netip.PrefixFrom(overlay(peer, 0), 24)}}}}
	if err := m.Sync(w); err != nil {
		tb.Fatal(err)
	}
	return m
}

// tcpSuperpacket returns 45 segments' worth of TCP from pod 5 of node 1 to that of node 2.
func tcpSuperpacket(tb testing.TB) ([]byte, encap.Offload) {
	const headers = 20 + 32
	b := make([]byte, headers+45*superpacketMSS)
	b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, 6
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	src, dst := overlay(1, 5), overlay(2, 5)
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], 5201)
	b[32], b[33] = 8<<4, 0x10
	copy(b[40:], []byte{1, 1, 8, 10})
	var ip encap.IP
	if err := encap.ParseIP(b, &ip); err != nil {
		tb.Fatal(err)
	}
	o, ok := encap.SuperOffload(b, &ip, superpacketMSS)
	if !ok {
		tb.Fatal("no superpacket")
	}
	return b, o
}

// BenchmarkSendSuperpacket is the sending worker with a superpacket of 62 KB: lookup,
// split into 45 segments with checksums, headers, even runs. No system call.
func BenchmarkSendSuperpacket(b *testing.B) {
	m := fastNode(b, 1, 2)
	p, o := tcpSuperpacket(b)
	m.LoadOffload(o, p)
	m.Send(10)
	b.ResetTimer()
	m.Send(b.N)
	b.StopTimer()
	if got := m.Stats().TxPackets; got != uint64(b.N)+10 {
		b.Fatalf("%d of %d superpackets sent", got, b.N+10)
	}
	report(b, len(p))
}

// BenchmarkReceiveSegments is the receiving worker with the datagrams of such a
// superpacket in one receive: cut, checked one by one, checksums verified, joined
// to a superpacket again. Restoring the headers that joining changes is in it.
func BenchmarkReceiveSegments(b *testing.B) {
	from, to := fastNode(b, 1, 2), fastNode(b, 2, 1)
	p, o := tcpSuperpacket(b)
	var received carrier.Arrival
	from.OnDatagram = func(d []byte, _ netip.Addr) {
		if received.Payload == nil {
			received.GRO = len(d)
		}
		received.Payload = append(received.Payload, d...)
	}
	from.LoadOffload(o, p)
	from.Send(1)
	received.From = from.VTEPs()[0].Addr
	header := slices.Clone(received.Payload[:encap.HeaderLen+60])
	to.LoadDatagrams(received)
	b.ResetTimer()
	for range b.N {
		copy(received.Payload, header)
		to.Receive(1)
	}
	b.StopTimer()
	if s := to.Stats(); s.RxPackets != uint64(b.N)*45 || s.Offload.RxSuperpackets != uint64(b.N) {
		b.Fatalf("counted %+v", s)
	}
	report(b, len(p))
}
