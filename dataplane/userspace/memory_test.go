package userspace

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

const testMTU = 1450

// testPair is two dataplanes in memory that know each other: a has 10.42.1.0/24
// and fd42:0:0:1::/64, b has the same with 2.
func testPair(tb testing.TB) (a, b *Memory) {
	tb.Helper()
	var nodes [2]*Memory
	var peers [2]dataplane.Peer
	for i := range nodes {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		nodes[i] = NewMemory(Config{Local: addr, Public: addr, VNI: 1, Port: 8472, MTU: testMTU})
		peers[i] = dataplane.Peer{VTEP: nodes[i].VTEPs()[0], Subnets: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i + 1), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x42, 7: byte(i + 1)}), 64),
		}}
	}
	for i, n := range nodes {
		if err := n.Sync(dataplane.Wanted{MTU: testMTU, Peers: []dataplane.Peer{peers[1-i]}}); err != nil {
			tb.Fatal(err)
		}
	}
	return nodes[0], nodes[1]
}
