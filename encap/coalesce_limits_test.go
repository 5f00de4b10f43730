package encap

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// TestCoalesceLimits has more segments, or longer ones, than one packet takes.
func TestCoalesceLimits(t *testing.T) {
	lengths := func(in [][]byte) (parts []int) {
		c := NewCoalescer(true, true)
		for _, p := range in {
			if !add(t, c, slices.Clone(p)) {
				t.Fatal("no room")
			}
		}
		for _, item := range c.Flush() {
			parts = append(parts, len(item.Parts))
		}
		return parts
	}
	for _, tt := range []struct {
		name string
		in   [][]byte
		want []int
	}{
		{"TCP", segments(t, tcpPacket(t, 4, pattern(300)), 1), []int{128, 128, 44}},
		{"UDP", segments(t, udpPacket(t, 6, pattern(150)), 1), []int{64, 64, 22}},
		{"exactly", segments(t, tcpPacket(t, 4, pattern(128)), 1), []int{128}},
		{"bytes", long(t), []int{46, 24}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := lengths(tt.in); !slices.Equal(got, tt.want) {
				t.Errorf("items of %v packets, want %v", got, tt.want)
			}
		})
	}
}

// long returns 70 segments of 1400 bytes of one connection.
func long(t *testing.T) [][]byte {
	first, second := tcpPacket(t, 4, pattern(35*1400)), tcpPacket(t, 4, pattern(35*1400))
	binary.BigEndian.PutUint32(second[24:], binary.BigEndian.Uint32(second[24:])+35*1400)
	binary.BigEndian.PutUint16(second[4:], binary.BigEndian.Uint16(second[4:])+35)
	fix(t, second)
	return append(segments(t, first, 1400), segments(t, second, 1400)...)
}

// connection returns two segments of connection i.
func connection(t *testing.T, i int) [][]byte {
	in := segments(t, tcpPacket(t, 4, pattern(200)), 100)
	for _, p := range in {
		binary.BigEndian.PutUint16(p[20:], uint16(1000+i))
		fix(t, p)
	}
	return in
}

// TestCoalesceManyFlows interleaves more connections than can grow at a time: the
// rest is not merged, and nothing is lost or out of order.
func TestCoalesceManyFlows(t *testing.T) {
	c := NewCoalescer(true, true)
	for _, flows := range []int{coalesceFlows, coalesceFlows + 1, 3 * coalesceFlows} {
		var in [][]byte
		for half := range 2 {
			for i := range flows {
				in = append(in, connection(t, i)[half])
			}
		}
		seq := make(map[uint16]uint32)
		payload := 0
		got := coalesce(t, c, in...)
		for _, w := range got {
			port, at := binary.BigEndian.Uint16(w.packet[20:]), binary.BigEndian.Uint32(w.packet[24:])
			if want, ok := seq[port]; ok && at != want {
				t.Errorf("port %d: sequence number %#x, want %#x", port, at, want)
			}
			seq[port] = at + uint32(len(w.packet)-52)
			payload += len(w.packet) - 52
		}
		if payload != 200*flows {
			t.Errorf("%d flows: %d bytes, want %d", flows, payload, 200*flows)
		}
		if flows == coalesceFlows && len(got) != flows {
			t.Errorf("%d flows: %d items", flows, len(got))
		}
	}
}

// TestCoalesceFull adds more than there is room for.
func TestCoalesceFull(t *testing.T) {
	c := NewCoalescer(true, true)
	for range 3 {
		merged, n := 0, 0
		for i := 0; ; i++ {
			in := connection(t, i)
			if !add(t, c, in[0]) {
				break
			}
			n++
			if !add(t, c, in[1]) {
				break
			}
			n++
		}
		packets := 0
		for _, item := range c.Flush() {
			packets += len(item.Parts)
			if len(item.Parts) > 1 {
				merged++
			}
		}
		// Those behind the last bank take an item for each of their packets.
		if want := coalesceItems + coalesceBanks; packets != n || packets != want || merged != coalesceBanks {
			t.Errorf("%d packets added, %d flushed in %d superpackets; want %d in %d", n, packets, merged, want, coalesceBanks)
		}
	}
}

// TestCoalesceBorrows shows that payloads are not copied.
func TestCoalesceBorrows(t *testing.T) {
	in := segments(t, tcpPacket(t, 4, pattern(300)), 100)
	c := NewCoalescer(true, false)
	for _, p := range in {
		add(t, c, p)
	}
	items := c.Flush()
	if len(items) != 1 || len(items[0].Parts) != 3 {
		t.Fatal("not merged")
	}
	for i, part := range items[0].Parts {
		if off := len(in[i]) - len(part); &part[0] != &in[i][off] || i > 0 && off != 52 {
			t.Errorf("part %d does not begin at %d of its packet", i, off)
		}
	}
	if again := c.Flush(); len(again) != 0 {
		t.Errorf("flushed %d items twice", len(again))
	}
}

// TestCoalesceDoesNotAllocate merges connections into superpackets again and again.
func TestCoalesceDoesNotAllocate(t *testing.T) {
	c := NewCoalescer(true, true)
	in := append(segments(t, tcpPacket(t, 4, pattern(46*100)), 100), segments(t, udpPacket(t, 6, pattern(46*100)), 100)...)
	ips := make([]*IP, len(in))
	for i := range in {
		ips[i] = parse(t, in[i])
	}
	first4, first6 := slices.Clone(in[0]), slices.Clone(in[46])
	if n := testing.AllocsPerRun(100, func() {
		copy(in[0], first4) // their headers became those of superpackets
		copy(in[46], first6)
		for i := range in {
			c.Add(in[i], ips[i], Offload{})
		}
		if items := c.Flush(); len(items) != 2 || len(items[0].Parts) != 46 || len(items[1].Parts) != 46 {
			t.Errorf("%d items", len(items))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCoalesceUDPNotAlike changes the second of three datagrams, checksums made
// right. Nothing may be merged over it, and nothing changed.
func TestCoalesceUDPNotAlike(t *testing.T) {
	for _, version := range []int{4, 6} {
		l4 := map[int]int{4: 20, 6: 40}[version]
		length := map[int]int{4: 3, 6: 5}[version] // offset of the low byte
		empty := map[int]byte{4: 28, 6: 8}[version]
		for _, tt := range []struct {
			name   string
			change func(b []byte) []byte
			want   []int // packets of each item
		}{
			{"no checksum", func(b []byte) []byte { b[l4+6], b[l4+7] = 0, 0; return b }, []int{1, 1, 1}},
			{"shorter than its packet", func(b []byte) []byte { b[l4+5]--; fix(t, b); return b }, []int{1, 1, 1}},
			{"no payload", func(b []byte) []byte {
				b = b[:l4+8]
				b[length], b[l4+5] = empty, 8
				fix(t, b)
				return b
			}, []int{1, 1, 1}},
			{"shorter", func(b []byte) []byte {
				b = b[:len(b)-1]
				b[length]--
				b[l4+5]--
				fix(t, b)
				return b
			}, []int{2, 1}},
			{"another port", func(b []byte) []byte { b[l4+1]++; fix(t, b); return b }, nil},
		} {
			t.Run(fmt.Sprintf("IPv%d/%s", version, tt.name), func(t *testing.T) {
				in := segments(t, udpPacket(t, version, pattern(300)), 100)
				in[1] = tt.change(in[1])
				c := NewCoalescer(true, true)
				for _, p := range in {
					add(t, c, slices.Clone(p))
				}
				var got []int
				for _, item := range c.Flush() {
					got = append(got, len(item.Parts))
				}
				want := tt.want
				if want == nil { // of another flow: the others do not mind, but for the gap in IPv4 IDs
					want = map[int][]int{4: {1, 1, 1}, 6: {2, 1}}[version]
				}
				if !slices.Equal(got, want) {
					t.Errorf("items of %v packets, want %v", got, want)
				}
			})
		}
	}
}
