package userspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// oddCase is a packet that is unlike its neighbours in a flow.
type oddCase struct {
	name   string
	change func(p []byte) []byte // of a segment; its checksum is completed afterwards
	as     oddAs
}

// oddAs says what an oddCase is for.
type oddAs struct {
	udp, v4, v6 bool // only for UDP, IPv4 or IPv6
	raw         bool // change completes the checksums, or damages them
	lost        bool // the host that receives it drops it
}

const segmentSize = 500 // payload of the segments of a stream

// oddCases are all of them. at is the offset of the TCP or UDP header.
func oddCases() []oddCase {
	set := func(off int, b ...byte) func([]byte) []byte { // in the TCP or UDP header
		return func(p []byte) []byte { copy(p[headerLen(p)+off:], b); return p }
	}
	ip := func(off4 int, v4 []byte, off6 int, v6 []byte) func([]byte) []byte {
		return func(p []byte) []byte {
			if p[0]>>4 == 4 {
				copy(p[off4:], v4)
			} else {
				copy(p[off6:], v6)
			}
			return p
		}
	}
	payload := func(n int) func([]byte) []byte {
		return func(p []byte) []byte { return append(p[:len(p)-segmentSize], make([]byte, n)...) }
	}
	cases := []oddCase{
		{"reserved bit", set(12, 5<<4|1), oddAs{}},
		{"another acknowledgement", set(8, 1, 2, 3, 4), oddAs{}},
		{"another window", set(14, 1, 2), oddAs{}},
		{"an urgent pointer", set(18, 1, 2), oddAs{}},
		{"a gap", set(4, 9, 9, 9, 9), oddAs{}},
		{"TCP options", func(p []byte) []byte {
			at := headerLen(p)
			q := append(append(bytes.Clone(p[:at+20]), bytes.Repeat([]byte{1}, 12)...), p[at+20:]...)
			q[at+12] = 8 << 4
			return q
		}, oddAs{}},
		{"a header longer than the packet", set(12, 15<<4), oddAs{}},
		{"a header shorter than there is", set(12, 1<<4), oddAs{}},
		{"no payload", payload(0), oddAs{}},
		{"one byte", payload(1), oddAs{}},
		{"a longer one", payload(segmentSize + 1), oddAs{}},
		{"another TTL", ip(8, []byte{33}, 7, []byte{33}), oddAs{}},
		{"another DSCP", ip(1, []byte{0xb8}, 0, []byte{0x6b, 0x80}), oddAs{}},
		{"ECN", ip(1, []byte{3}, 0, []byte{0x60, 0x30}), oddAs{}},
		{"another flow label", ip(0, nil, 1, []byte{0, 0, 7}), oddAs{v6: true}},
		{"DF", ip(6, []byte{0x40}, 0, nil), oddAs{v4: true}},
		{"the reserved flag", ip(6, []byte{0x80}, 0, nil), oddAs{v4: true}},
		{"another identification", ip(4, []byte{9, 9}, 0, nil), oddAs{v4: true}},
		{"a wrong TCP checksum", func(p []byte) []byte { p[len(p)-1] ^= 0x55; return p }, oddAs{raw: true}},
		{"a wrong header checksum", func(p []byte) []byte { p[10] ^= 0x55; return p }, oddAs{raw: true, v4: true, lost: true}},
		{"a jumbogram", func(p []byte) []byte {
			p[4], p[5], p[6] = 0, 0, 0
			return append(append(p[:40:40], 6, 0, 0xc2, 4, 0, 0, 2, 8), p[40:]...)
		}, oddAs{raw: true, v6: true, lost: true}},
		{"an authentication header", func(p []byte) []byte {
			at := headerLen(p)
			q := append(append(bytes.Clone(p[:at]), append([]byte{6, 4}, make([]byte, 22)...)...), p[at:]...)
			return packettest.SetLength(ip(9, []byte{51}, 6, []byte{51})(q))
		}, oddAs{raw: true}},
		{"no UDP checksum", func(p []byte) []byte { copy(p[headerLen(p)+6:], []byte{0, 0}); return p }, oddAs{udp: true, raw: true}},
		{"a wrong UDP checksum", func(p []byte) []byte { p[len(p)-1] ^= 0x55; return p }, oddAs{udp: true, raw: true}},
		{"bytes behind the datagram", set(4, 0, 9, 0, 0), oddAs{udp: true, raw: true}},
		{"a UDP length of 0", set(4, 0, 0, 0, 0), oddAs{udp: true, raw: true}},
		{"a UDP length beyond the packet", set(4, 9, 9), oddAs{udp: true, raw: true}},
		{"no UDP payload", func(p []byte) []byte { q := p[:headerLen(p)+8]; q[len(q)-4], q[len(q)-3] = 0, 8; return q }, oddAs{udp: true}},
	}
	for bit := range 8 {
		cases = append(cases, oddCase{fmt.Sprintf("flags %#x", 0x10^1<<bit), set(13, 0x10^1<<bit), oddAs{}})
	}
	for _, udp := range []bool{false, true} {
		for name, change := range map[string]func([]byte) []byte{
			"options or hop-by-hop options": func(p []byte) []byte { return packettest.WithHeader(p, 0, 1) },
			"many of them":                  func(p []byte) []byte { return packettest.WithHeader(p, 60, 5) },
			"a first fragment":              func(p []byte) []byte { return pieceOf(p, 0, true) },
			"a middle fragment":             func(p []byte) []byte { return pieceOf(p, 8, true) },
			"a last fragment":               func(p []byte) []byte { return pieceOf(p, 16, false) },
			"an atomic fragment":            func(p []byte) []byte { return pieceOf(p, 0, false) },
		} {
			cases = append(cases, oddCase{name, change, oddAs{raw: true, udp: udp}})
		}
	}
	for _, proto := range []byte{1, 4, 33, 47, 50, 58, 59, 132, 136, 253} { // ICMP, IPIP, DCCP, GRE, ESP, ICMPv6, none, SCTP, UDP-Lite, nobody's
		cases = append(cases, oddCase{fmt.Sprintf("protocol %d", proto), func(p []byte) []byte { return packettest.SetLength(ip(9, []byte{proto}, 6, []byte{proto})(p)) }, oddAs{raw: true}})
	}
	return cases
}

// pieceOf makes a packet one, off bytes into a datagram: by the fragment header of IPv6, or in the header of IPv4.
func pieceOf(p []byte, off uint16, more bool) []byte {
	if p[0]>>4 == 4 {
		binary.BigEndian.PutUint16(p[6:], off/8)
		if more {
			p[6] |= 0x20
		}
		return packettest.SetLength(p)
	}
	q := packettest.WithHeader(p, 44, 1)
	q[41], q[42], q[43] = 0, byte(off>>8), byte(off)
	if more {
		q[43] |= 1
	}
	return q
}

// TestOddPacketsCross puts each odd packet between segments of its flow, which are joined on the way and cut again: all arrive byte for byte.
func TestOddPacketsCross(t *testing.T) {
	t.Parallel()
	for _, offloads := range []Offloads{AllOffloads, 0} {
		t.Run(offloads.String(), func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t, offloads, peerOf{offloads: offloads})
			for _, v6 := range []bool{false, true} {
				for _, odd := range oddCases() {
					if odd.as.v4 && v6 || odd.as.v6 && !v6 {
						continue
					}
					t.Run(fmt.Sprintf("%s, IPv6 %t, UDP %t", odd.name, v6, odd.as.udp), func(t *testing.T) {
						c.t = t
						c.cross(v6, odd)
					})
				}
			}
			if s := c.e.Stats(); offloads.has(Coalesce) == (s.Offload.RxSegments == 0) {
				t.Errorf("nothing was joined, or without being asked to: %+v", s)
			}
		})
	}
}

// cross sends an odd packet in the middle of a stream.
func (c *crossing) cross(v6 bool, odd oddCase) {
	c.t.Helper()
	var sent, come [][]byte
	for i := range 21 {
		p := c.segment(v6, odd.as.udp, i)
		if i == 10 {
			p = odd.change(p)
			if !odd.as.raw {
				p = withChecksum(packettest.SetLength(p))
			}
		}
		if sent = append(sent, p); i != 10 || !odd.as.lost {
			come = append(come, p)
		}
	}
	for _, p := range sent {
		c.send(p, encap.Offload{})
	}
	c.check(v6, come)
}

// segment returns the i-th segment of a stream, or the i-th datagram.
func (c *crossing) segment(v6, udp bool, i int) []byte {
	src, dst := c.ends(v6)
	data := bytes.Repeat([]byte{byte(i)}, segmentSize)
	p := packettest.TCP(src, dst, uint32(1000+i*segmentSize), data)
	p[headerLen(p)+13] = 0x10 // it could be joined
	if udp {
		p = packettest.UDP(src, dst, 1000, 2000, data)
	}
	if !v6 {
		binary.BigEndian.PutUint16(p[4:], uint16(i))
	}
	return withChecksum(packettest.SetLength(p))
}
