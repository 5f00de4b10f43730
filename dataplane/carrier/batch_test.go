package carrier

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// recorder is a transmitter that notes the runs of each batch.
type recorder struct {
	runs []string // "<datagrams>x<size>/<last>", in order by socket
	seen int      // datagrams
}

func (r *recorder) transmit(b *batcher, c *Counters) {
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
			c.CarriedAll(run.packets, run.carried)
		}
	}
}

func bufOf(p []byte) Packet {
	return Packet{Buf: append(make([]byte, encap.HeaderLen), p...), At: encap.HeaderLen}
}

// superpacket returns a TCP superpacket with what its vnet header says.
func superpacket(n int, mss uint16) Packet {
	p := bufOf(packettest.TCP(podA, podB, 1, make([]byte, n)))
	var ip encap.IP
	_ = encap.ParseIP(p.IP(), &ip)
	p.Offload, _ = encap.SuperOffload(p.IP(), &ip, mss)
	return p
}

func TestBatchMakesRuns(t *testing.T) {
	udp := func(n int) Packet { return bufOf(packettest.UDP(podA, podB, 1, 2, make([]byte, n))) }
	marked := udp(100)
	marked.IP()[1] = byte(encap.ECN0)
	other := new(Entry)
	limit := encap.RunLimit{Datagrams: 128, Bytes: encap.MaxRunBytes}
	const h = encap.HeaderLen + 28 // of a UDP datagram
	for name, test := range map[string]struct {
		packets []Packet
		entries map[int]*Entry // other ones than the usual
		limit   encap.RunLimit
		want    []string
	}{
		"one":               {packets: []Packet{udp(100)}, want: []string{"1x150/150"}},
		"equal":             {packets: []Packet{udp(100), udp(100), udp(100)}, want: []string{"3x150/150"}},
		"shorter ends it":   {packets: []Packet{udp(100), udp(90), udp(90), udp(90)}, want: []string{"2x150/140", "2x140/140"}},
		"longer begins one": {packets: []Packet{udp(100), udp(101), udp(101)}, want: []string{"1x150/150", "2x151/151"}},
		"another VTEP":      {packets: []Packet{udp(100), udp(100)}, entries: map[int]*Entry{1: other}, want: []string{"1x150/150", "1x150/150"}},
		"another ECN":       {packets: []Packet{udp(100), marked, udp(100)}, want: []string{"1x150/150", "1x150/150", "1x150/150"}},
		"no UDP_SEGMENT":    {packets: []Packet{udp(100), udp(100)}, limit: encap.RunLimit{Datagrams: 1, Bytes: encap.MaxRunBytes}, want: []string{"1x150/150", "1x150/150"}},
		"limit of datagrams": {packets: []Packet{udp(100), udp(100), udp(100)}, limit: encap.RunLimit{Datagrams: 2, Bytes: encap.MaxRunBytes},
			want: []string{"2x150/150", "1x150/150"}},
		"limit of bytes":   {packets: slices.Repeat([]Packet{udp(1400)}, 46), want: []string{fmt.Sprintf("45x%d/%[1]d", 1400+h), fmt.Sprintf("1x%d/%[1]d", 1400+h)}},
		"superpacket":      {packets: []Packet{superpacket(5000, 1398)}, want: []string{"4x1460/868"}},
		"even superpacket": {packets: []Packet{superpacket(46*1398, 1398)}, want: []string{"23x1460/1460", "23x1460/1460"}},
		"superpackets of a stream": {packets: []Packet{superpacket(46*1398, 1398), superpacket(46*1398, 1398)},
			want: []string{"23x1460/1460", "44x1460/1460", "25x1460/1460"}},
		"a short segment ends it": {packets: []Packet{superpacket(2896, 1398), superpacket(2796, 1398)}, want: []string{"3x1460/162", "2x1460/1460"}},
		"and joins":               {packets: []Packet{superpacket(2796, 1398), superpacket(100, 1398), superpacket(100, 1398)}, want: []string{"3x1460/162", "1x1460/162"}},
		"another size":            {packets: []Packet{superpacket(2796, 1398), superpacket(2000, 1000)}, want: []string{"2x1460/1460", "2x1062/1062"}},
		"segments one by one": {packets: []Packet{superpacket(3000, 1398)}, limit: encap.RunLimit{Datagrams: 1, Bytes: encap.MaxRunBytes},
			want: []string{"1x1460/1460", "1x1460/1460", "1x1460/266"}},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			var c Counters
			if test.limit == (encap.RunLimit{}) {
				test.limit = limit
			}
			b, usual := newBatcher(&r, test.limit), new(Entry)
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
			c.Publish()
			if got := c.published.packets.Load(); got != uint64(len(test.packets)) {
				t.Errorf("%d packets counted, want %d", got, len(test.packets))
			}
		})
	}
}

// TestBatchOverflows has more segments than a batch holds.
func TestBatchOverflows(t *testing.T) {
	var r recorder
	var c Counters
	b := newBatcher(&r, encap.RunLimit{Datagrams: 128, Bytes: encap.MaxRunBytes})
	p := superpacket(64000, 50)
	b.Send(&p, new(Entry), false, &c)
	b.Send(&p, new(Entry), false, &c)
	for range 3000 {
		small := bufOf(packettest.UDP(podA, podB, 1, 2, nil))
		b.Send(&small, new(Entry), false, &c)
	}
	b.Flush(&c)
	c.Publish()
	if r.seen != 2*1280+3000 || c.published.packets.Load() != 3002 {
		t.Errorf("%d datagrams, %d packets", r.seen, c.published.packets.Load())
	}
}
