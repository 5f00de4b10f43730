package userspace

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// TestMACOfLease: the VTEP has the MAC that a Sync says, in what it sends and takes, and in VTEPs.
func TestMACOfLease(t *testing.T) {
	a, b := testPair(t)
	old := encapsulate(t, a, udpPacket(podA, podB, 1, 2, []byte("old")))
	other := encap.MAC{2, 7}
	vtep := b.VTEPs()[0]
	vtep.MAC = other
	peer := dataplane.Peer{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{subnetA}}
	if err := b.Sync(dataplane.Wanted{MTU: testMTU, VTEPs: []dataplane.VTEP{vtep}, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{peer}}); err != nil {
		t.Fatal(err)
	}
	if got := b.VTEPs()[0].MAC; got != other {
		t.Errorf("publishes MAC %s", got)
	}
	requireDrop(t, b, old, dataplane.DropBadMAC)
	if d := encapsulate(t, b, udpPacket(podB, podA, 1, 2, []byte("new"))); !bytes.Equal(d.Payload[encap.VXLANLen+6:][:encap.MACLen], other[:]) {
		t.Errorf("sends % x", d.Payload)
	}
	if err := a.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetA}, Peers: []dataplane.Peer{{VTEP: vtep, Subnets: []netip.Prefix{subnetB}}}}); err != nil {
		t.Fatal(err)
	}
	packet := udpPacket(podA, podB, 1, 2, []byte("new"))
	if got := decapsulate(b, encapsulate(t, a, packet)); len(got) != 1 || !bytes.Equal(got[0], packet) {
		t.Errorf("got % x", got)
	}
}

// TestPeersOfOneMAC: peers are known by their addresses. Two may have one MAC, and one that of this node.
func TestPeersOfOneMAC(t *testing.T) {
	a, b := testPair(t)
	from, to := a.VTEPs()[0], b.VTEPs()[0]
	to.MAC = from.MAC
	packet := udpPacket(podA, podB, 1, 2, []byte("hello"))
	other := dataplane.Peer{VTEP: to, Subnets: []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")}}
	other.Addr = other.Addr.Next()
	if err := a.Sync(dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetA}, Peers: []dataplane.Peer{{VTEP: to, Subnets: []netip.Prefix{subnetB}}, other}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Sync(dataplane.Wanted{MTU: testMTU, VTEPs: []dataplane.VTEP{to}, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{{VTEP: from, Subnets: []netip.Prefix{subnetA}}}}); err != nil {
		t.Fatal(err)
	}
	if got := decapsulate(b, encapsulate(t, a, packet)); len(got) != 1 || !bytes.Equal(got[0], packet) {
		t.Errorf("got % x, %+v", got, b.Stats())
	}
}
