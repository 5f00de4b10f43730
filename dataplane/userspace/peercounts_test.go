package userspace

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// TestTrafficOfEachPeer: what is sent to each VTEP and accepted from it is counted as its own, in whatever order it comes, for all
// its subnets together, for as long as it is a peer; what is dropped is not.
func TestTrafficOfEachPeer(t *testing.T) {
	addr := netip.MustParseAddr
	second := sourcePeer(1, "")
	second.Subnets = []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24")} // a further lease of the first
	peers := []dataplane.Peer{sourcePeer(1, ""), sourcePeer(3, "10.0.0.3"), sourcePeer(4, ""), second}
	own := netip.MustParseAddr("192.0.2.2")
	m := NewMemory(Config{Underlays: []dataplane.Underlay{{Local: own, Public: own}}, VNI: testVNI, Port: testPort, MTU: testMTU, Offloads: UDPSegment})
	if err := m.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: peers}); err != nil {
		t.Fatal(err)
	}
	want := map[netip.Addr]dataplane.Traffic{addr("192.0.2.1"): {}, addr("192.0.2.3"): {}, addr("192.0.2.4"): {}}
	pods := map[netip.Addr]netip.Addr{addr("10.42.1.2"): addr("192.0.2.1"), addr("10.42.9.2"): addr("192.0.2.1"), addr("10.42.3.2"): addr("192.0.2.3")}
	var all []netip.Addr
	for pod := range pods {
		all = append(all, pod)
	}
	var packets [][]byte
	var arrivals []carrier.Arrival
	for range 500 {
		pod := all[rand.IntN(len(all))]
		vtep := pods[pod]
		out := udpPacket(podB, pod, 1, 2, make([]byte, rand.IntN(1000)))
		in := sourceDatagram(m, vtep, pod)
		if vtep == addr("192.0.2.3") && rand.IntN(2) == 0 {
			in.From = addr("10.0.0.3")
		}
		packets, arrivals = append(packets, out), append(arrivals, in)
		size := len(udpPacket(pod, podB, 1, 2, []byte("x")))
		want[vtep] = want[vtep].Plus(dataplane.Traffic{TxBytes: uint64(len(out)), RxBytes: uint64(size)})
	}
	forged := sourceDatagram(m, addr("192.0.2.4"), addr("10.42.1.2"))
	m.Load(append(packets, udpPacket(podB, addr("10.42.77.1"), 1, 2, nil))...)
	m.Send(len(packets) + 1)
	m.LoadDatagrams(append(arrivals, forged)...)
	m.Receive(len(arrivals) + 1)
	if diff := cmp.Diff(want, m.core.traffic(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
	sum, stats := dataplane.Traffic{}, m.Stats()
	for _, t := range m.core.traffic() {
		sum = sum.Plus(t)
	}
	if got := (dataplane.Traffic{TxBytes: stats.TxBytes, RxBytes: stats.RxBytes}); got != sum {
		t.Errorf("all peers together have %+v, the dataplane %+v", sum, got)
	}
	for _, step := range []struct {
		peers []dataplane.Peer
		want  map[netip.Addr]dataplane.Traffic
	}{
		{peers[:1], map[netip.Addr]dataplane.Traffic{addr("192.0.2.1"): want[addr("192.0.2.1")]}},
		{peers[:2], map[netip.Addr]dataplane.Traffic{addr("192.0.2.1"): want[addr("192.0.2.1")], addr("192.0.2.3"): {}}},
	} {
		if err := m.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: step.peers}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, m.core.traffic(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("with %d peers (-want +got):\n%s", len(step.peers), diff)
		}
	}
}
