package userspace

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

func bufOf(p []byte) carrier.Packet {
	return carrier.Packet{Buf: append(make([]byte, encap.HeaderLen), p...), At: encap.HeaderLen}
}

// superpacket returns a TCP superpacket with what its vnet header says.
func superpacket(n int, mss uint16) carrier.Packet {
	p := bufOf(tcpPacket(podA, podB, 1, make([]byte, n)))
	var ip encap.IP
	_ = encap.ParseIP(p.IP(), &ip)
	p.Offload, _ = encap.SuperOffload(p.IP(), &ip, mss)
	return p
}

// TestFlowStaysInOrder sends flows of changing sizes and looks at each of them.
func TestFlowStaysInOrder(t *testing.T) {
	a, b := testPairOf(t, UDPSegment)
	var packets [][]byte
	for i := range 500 {
		payload := append([]byte{byte(i >> 8), byte(i)}, make([]byte, 1+i*7%13*100)...)
		packets = append(packets, udpPacket(podA, podB, uint16(1000+i%7), 53, payload))
	}
	last := map[uint16]int{}
	for _, d := range encapsulateAll(a, packets) {
		for _, p := range decapsulate(b, d) {
			port, i := uint16(p[20])<<8|uint16(p[21]), int(p[28])<<8|int(p[29])
			if i < last[port] {
				t.Fatalf("flow %d: %d after %d", port, i, last[port])
			}
			last[port] = i
		}
	}
	if s := b.Stats(); s.RxPackets != 500 {
		t.Errorf("%d of 500 arrived", s.RxPackets)
	}
}

// TestSuperpacketsCrossTwoDevices is split on one side and coalesce on the other.
func TestSuperpacketsCrossTwoDevices(t *testing.T) {
	payload := make([]byte, 60000)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for name, test := range map[string]struct {
		packet []byte
		size   uint16
	}{
		"TCP":    {tcpPacket(podA, podB, 1<<32-100, payload), 1398},
		"TCP v6": {tcpPacket(podA6, podB6, 5, payload), 1378},
		"UDP":    {udpPacket(podA, podB, 1, 2, payload), 1400},
		"UDP v6": {udpPacket(podA6, podB6, 1, 2, payload), 1400},
	} {
		for _, merged := range []bool{false, true} { // by UDP_GRO, on the way
			t.Run(fmt.Sprintf("%s/gro=%t", name, merged), func(t *testing.T) {
				a, b := testPairOf(t, AllOffloads)
				var ip encap.IP
				super := bytes.Clone(test.packet)
				if err := encap.ParseIP(super, &ip); err != nil {
					t.Fatal(err)
				}
				o, ok := encap.SuperOffload(super, &ip, test.size)
				if !ok {
					t.Fatal("no superpacket")
				}
				want := bytes.Clone(super)
				o.HdrLen = 0
				datagrams := encapsulateOffload(a, o, super)
				if merged {
					datagrams = []carrier.Arrival{join(datagrams)}
				}
				checkRejoined(t, b, datagrams, want, o)
			})
		}
	}
}

// checkRejoined has b receive datagrams and wants one superpacket of them.
func checkRejoined(t *testing.T, b *Memory, datagrams []carrier.Arrival, want []byte, o encap.Offload) {
	t.Helper()
	var got [][]byte
	b.OnOffload = func(p []byte, po encap.Offload) {
		if got = append(got, bytes.Clone(p)); po.GSO != o.GSO || po.Size != o.Size || !po.Partial {
			t.Errorf("offload %+v, want %+v", po, o)
		}
	}
	b.LoadDatagrams(datagrams...)
	b.Receive(len(datagrams))
	if o.GSO == encap.GSOUDP && len(got) > 1 { // UDP_MAX_SEGMENTS before Linux 6.9 is the limit there
		return
	}
	if len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Errorf("%d packets, counted %+v", len(got), b.Stats())
	}
	if s := b.Stats(); s.Drops != [dataplane.NumDrops]uint64{} || s.Offload.RxSuperpackets != 1 {
		t.Errorf("counted %+v", s)
	}
}

// join makes of datagrams what UDP_GRO does.
func join(ds []carrier.Arrival) carrier.Arrival {
	d := carrier.Arrival{From: ds[0].From, ECN: ds[0].ECN, GRO: len(ds[0].Payload)}
	for _, one := range ds {
		d.Payload = append(d.Payload, one.Payload...)
	}
	return d
}

// TestPartialSegmentsAreJoined has what a vxlan peer on this machine sends if
// something before it made the segments: each looks as if it might be a
// superpacket of two smaller ones.
func TestPartialSegmentsAreJoined(t *testing.T) {
	a, b := testPairOf(t, AllOffloads)
	const size = testMTU - 40
	var ds []carrier.Arrival
	for i := range 20 {
		p := tcpPacket(podA, podB, uint32(1+i*size), make([]byte, size))
		mergeable(p)
		ds = append(ds, encapsulateAll(a, [][]byte{makePartial(p)})...)
	}
	n := 0
	b.OnOffload = func(p []byte, o encap.Offload) {
		n++
		if len(p) != 40+20*size || o.GSO != encap.GSOTCPv4 || o.Size != guessedMTU-40 || !o.Partial {
			t.Errorf("%d bytes, offload %+v", len(p), o)
		}
	}
	b.LoadDatagrams(ds...)
	b.Receive(len(ds))
	if n != 1 {
		t.Errorf("%d packets", n)
	}
}

func TestWorkersDoNotAllocate(t *testing.T) {
	a, b := testPairOf(t, AllOffloads)
	super := superpacket(60000, 1398)
	ds := encapsulateOffload(a, super.Offload, super.IP())
	a.OnDatagram = nil
	send := &a.core.send[0]
	small := bufOf(udpPacket(podA, podB, 1, 2, make([]byte, 100)))
	allocates(t, "split", func() { send.send(&super); send.flush() })
	allocates(t, "send", func() {
		for range 100 {
			send.send(&small)
		}
		send.flush()
	})
	whole := join(ds)
	scratch := bytes.Clone(whole.Payload) // for a coalescer changes headers
	b.LoadDatagrams(carrier.Arrival{Payload: scratch, From: whole.From, GRO: whole.GRO})
	allocates(t, "cut, receive and coalesce", func() {
		copy(scratch, whole.Payload)
		b.Receive(1)
	})
	if s := b.Stats(); s.Drops != [dataplane.NumDrops]uint64{} || s.Offload.RxSegments < 100*uint64(len(ds)) {
		t.Errorf("counted %+v", s)
	}
}

func allocates(t *testing.T, what string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(100, f); n > 0 {
		t.Errorf("%s: %v allocations", what, n)
	}
}
