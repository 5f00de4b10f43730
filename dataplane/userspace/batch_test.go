package userspace

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// recorder is a transmitter that notes the runs of each batch.
type recorder struct {
	runs []string // "<datagrams>x<size>/<last>", in order by socket
	seen int      // datagrams
}

func (r *recorder) transmit(b *batcher, c *counters) {
	for s := b.ports; s != 0; s &= s - 1 {
		for i := b.head[bits.TrailingZeros32(s)]; i != 0; i = b.runs[i].next {
			run := &b.runs[i]
			last, total, n := 0, 0, 0
			for j := run.first; j != 0; j = b.segments[j].next {
				last = len(b.segments[j].head) + len(b.segments[j].payload)
				total += last
				n++
			}
			if n != int(run.n) || total != run.bytes {
				r.runs = append(r.runs, fmt.Sprintf("books of run %d are wrong", i))
			}
			r.seen += n
			r.runs = append(r.runs, fmt.Sprintf("%dx%d/%d", n, run.size, last))
			c.carriedAll(run.packets, run.carried)
		}
	}
}

func bufOf(p []byte) packet {
	return packet{buf: append(make([]byte, encap.HeaderLen), p...), at: encap.HeaderLen}
}

// superpacket returns a TCP superpacket with what its vnet header says.
func superpacket(n int, mss uint16) packet {
	p := bufOf(tcpPacket(podA, podB, 1, make([]byte, n)))
	var ip encap.IP
	_ = encap.ParseIP(p.ip(), &ip)
	p.Offload, _ = encap.SuperOffload(p.ip(), &ip, mss)
	return p
}

func TestBatchMakesRuns(t *testing.T) {
	udp := func(n int) packet { return bufOf(udpPacket(podA, podB, 1, 2, make([]byte, n))) }
	marked := udp(100)
	marked.ip()[1] = byte(encap.ECN0)
	other := new(entry)
	limit := encap.RunLimit{Datagrams: 128, Bytes: encap.MaxRunBytes}
	const h = encap.HeaderLen + 28 // of a UDP datagram
	for name, test := range map[string]struct {
		packets []packet
		entries map[int]*entry // other ones than the usual
		limit   encap.RunLimit
		want    []string
	}{
		"one":               {packets: []packet{udp(100)}, want: []string{"1x150/150"}},
		"equal":             {packets: []packet{udp(100), udp(100), udp(100)}, want: []string{"3x150/150"}},
		"shorter ends it":   {packets: []packet{udp(100), udp(90), udp(90), udp(90)}, want: []string{"2x150/140", "2x140/140"}},
		"longer begins one": {packets: []packet{udp(100), udp(101), udp(101)}, want: []string{"1x150/150", "2x151/151"}},
		"another VTEP":      {packets: []packet{udp(100), udp(100)}, entries: map[int]*entry{1: other}, want: []string{"1x150/150", "1x150/150"}},
		"another ECN":       {packets: []packet{udp(100), marked, udp(100)}, want: []string{"1x150/150", "1x150/150", "1x150/150"}},
		"no UDP_SEGMENT":    {packets: []packet{udp(100), udp(100)}, limit: encap.RunLimit{Datagrams: 1, Bytes: encap.MaxRunBytes}, want: []string{"1x150/150", "1x150/150"}},
		"limit of datagrams": {packets: []packet{udp(100), udp(100), udp(100)}, limit: encap.RunLimit{Datagrams: 2, Bytes: encap.MaxRunBytes},
			want: []string{"2x150/150", "1x150/150"}},
		"limit of bytes":   {packets: slices.Repeat([]packet{udp(1400)}, 46), want: []string{fmt.Sprintf("45x%d/%[1]d", 1400+h), fmt.Sprintf("1x%d/%[1]d", 1400+h)}},
		"superpacket":      {packets: []packet{superpacket(5000, 1398)}, want: []string{"4x1460/868"}},
		"even superpacket": {packets: []packet{superpacket(46*1398, 1398)}, want: []string{"23x1460/1460", "23x1460/1460"}},
		"superpackets of a stream": {packets: []packet{superpacket(46*1398, 1398), superpacket(46*1398, 1398)},
			want: []string{"23x1460/1460", "44x1460/1460", "25x1460/1460"}},
		"a short segment ends it": {packets: []packet{superpacket(2896, 1398), superpacket(2796, 1398)}, want: []string{"3x1460/162", "2x1460/1460"}},
		"and joins":               {packets: []packet{superpacket(2796, 1398), superpacket(100, 1398), superpacket(100, 1398)}, want: []string{"3x1460/162", "1x1460/162"}},
		"another size":            {packets: []packet{superpacket(2796, 1398), superpacket(2000, 1000)}, want: []string{"2x1460/1460", "2x1062/1062"}},
		"segments one by one": {packets: []packet{superpacket(3000, 1398)}, limit: encap.RunLimit{Datagrams: 1, Bytes: encap.MaxRunBytes},
			want: []string{"1x1460/1460", "1x1460/1460", "1x1460/266"}},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			var c counters
			if test.limit == (encap.RunLimit{}) {
				test.limit = limit
			}
			b, usual := newBatcher(&r, test.limit), new(entry)
			for i := range test.packets {
				e := usual
				if test.entries[i] != nil {
					e = test.entries[i]
				}
				b.Send(&test.packets[i], e, false, &c)
			}
			b.Flush(&c)
			b.Flush(&c) // nothing is left
			if !slices.Equal(r.runs, test.want) {
				t.Errorf("runs %v, want %v", r.runs, test.want)
			}
			c.publish()
			if got := c.published.packets.Load(); got != uint64(len(test.packets)) {
				t.Errorf("%d packets counted, want %d", got, len(test.packets))
			}
		})
	}
}

// TestBatchOverflows has more segments than a batch holds.
func TestBatchOverflows(t *testing.T) {
	var r recorder
	var c counters
	b := newBatcher(&r, encap.RunLimit{Datagrams: 128, Bytes: encap.MaxRunBytes})
	p := superpacket(64000, 40)
	b.Send(&p, new(entry), false, &c)
	b.Send(&p, new(entry), false, &c)
	for range 3000 {
		small := bufOf(udpPacket(podA, podB, 1, 2, nil))
		b.Send(&small, new(entry), false, &c)
	}
	b.Flush(&c)
	c.publish()
	if r.seen != 2*1600+3000 || c.published.packets.Load() != 3002 {
		t.Errorf("%d datagrams, %d packets", r.seen, c.published.packets.Load())
	}
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
					datagrams = []Datagram{join(datagrams)}
				}
				checkRejoined(t, b, datagrams, want, o)
			})
		}
	}
}

// checkRejoined has b receive datagrams and wants one superpacket of them.
func checkRejoined(t *testing.T, b *Memory, datagrams []Datagram, want []byte, o encap.Offload) {
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
func join(ds []Datagram) Datagram {
	d := Datagram{From: ds[0].From, ECN: ds[0].ECN, GRO: len(ds[0].Payload)}
	for _, one := range ds {
		d.Payload = append(d.Payload, one.Payload...)
	}
	return d
}

// TestPartialSegmentsAreJoined has what a vxlan peer on this machine sends where
// something else than it made the segments: each looks as if it might be a
// superpacket of two smaller ones.
func TestPartialSegmentsAreJoined(t *testing.T) {
	a, b := testPairOf(t, AllOffloads)
	const size = testMTU - 40
	var ds []Datagram
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
	ds := encapsulateOffload(a, super.Offload, super.ip())
	a.OnDatagram = nil
	send, receive := &a.core.send[0], b.core.lanes[0]
	small := bufOf(udpPacket(podA, podB, 1, 2, make([]byte, 100)))
	allocates(t, "split", func() { send.send(&super); send.flush() })
	allocates(t, "send", func() {
		for range 100 {
			send.send(&small)
		}
		send.flush()
	})
	var cut cutter
	whole := join(ds)
	scratch := make([]byte, len(whole.Payload)) // for a coalescer changes headers
	allocates(t, "cut, receive and coalesce", func() {
		copy(scratch, whole.Payload)
		cut.from = whole.From
		for cut.init(scratch, whole.GRO); cut.next(); {
			receive.receive(&cut.datagram)
		}
		receive.flush()
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
