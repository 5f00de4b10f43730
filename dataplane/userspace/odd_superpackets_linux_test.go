package userspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// superCase is a superpacket, or a packet with a partial checksum.
type superCase struct {
	name   string
	n      int    // bytes of payload
	size   uint16 // of each segment; 0: it is no superpacket
	udp    bool
	change func(p []byte) []byte // of the whole; nil: none
}

func superCases() []superCase {
	flags := func(f byte) func([]byte) []byte {
		return func(p []byte) []byte { p[headerLen(p)+13] = f; return p }
	}
	cases := []superCase{
		{"all flags, reserved bit and urgent pointer", 4001, 1000, false, func(p []byte) []byte {
			at := headerLen(p)
			p[at+12] |= 1
			copy(p[at+18:], []byte{1, 2})
			return flags(0xff)(p)
		}},
		{"TCP options", 4001, 1000, false, func(p []byte) []byte {
			at := headerLen(p)
			q := append(append(bytes.Clone(p[:at+20]), bytes.Repeat([]byte{1}, 40)...), p[at+20:]...)
			q[at+12] = 15 << 4
			return packettest.SetLength(q)
		}},
	}
	for bit := range 8 {
		cases = append(cases, superCase{fmt.Sprintf("flags %#x", 0x10^1<<bit), 3000, 1000, false, flags(0x10 ^ 1<<bit)})
	}
	for _, udp := range []bool{false, true} {
		cases = append(cases, []superCase{
			{"no superpacket", 1000, 0, udp, nil},
			{"two segments", 2000, 1000, udp, nil},
			{"a byte more than a segment", 1001, 1000, udp, nil},
			{"small segments", 127*48 + 1, 48, udp, nil},
			{"segments of the MTU", 60000, 1450 - 60, udp, nil},
			{"an odd size", 9999, 333, udp, nil},
			{"the largest", 65535 - 60, 1000, udp, nil},
			{"options or extension headers", 4001, 1000, udp, func(p []byte) []byte { return packettest.WithHeader(p, 60, 3) }},
			{"DF, ECN and another TTL", 4001, 1000, udp, func(p []byte) []byte {
				if p[0]>>4 == 4 {
					p[1], p[6], p[8] = 0xba, 0x40, 33
				} else {
					p[0], p[1], p[2], p[7] = 0x6b, 0xa0, 7, 33
				}
				return packettest.SetLength(p)
			}},
			{"identifications that wrap", 4001, 1000, udp, func(p []byte) []byte {
				if p[0]>>4 == 4 {
					copy(p[4:], []byte{0xff, 0xfe})
				}
				return packettest.SetLength(p)
			}},
		}...)
	}
	return cases
}

// TestOddSuperpacketsCross has superpackets leave by the uplink and by the sockets, over a link that takes them whole and one that does not, to all kinds of
// peers: they arrive as the kernel would have cut them.
func TestOddSuperpacketsCross(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		offloads Offloads
		peer     peerOf
		cut      bool // the link takes nothing whole
		guesses  bool // the peer gets superpackets whole, and is not told the size of segments of TCP
	}{
		"uplink to userspace":                {AllOffloads, peerOf{offloads: AllOffloads}, false, true},
		"uplink to userspace, plain":         {AllOffloads, peerOf{}, false, true},
		"uplink to kernel":                   {AllOffloads, peerOf{kernel: true}, false, false},
		"uplink to kernel, cut":              {AllOffloads, peerOf{kernel: true}, true, false},
		"sockets to userspace":               {AllOffloads &^ Tunnel, peerOf{offloads: AllOffloads}, false, false},
		"sockets to kernel, cut":             {AllOffloads &^ Tunnel, peerOf{kernel: true}, true, false},
		"sockets without segments to kernel": {AllOffloads &^ Tunnel &^ UDPSegment, peerOf{kernel: true}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t, tt.offloads, tt.peer)
			if tt.cut {
				c.a.Run("ethtool", "-K", "eth0", "tx", "off", "sg", "off")
			}
			if tt.offloads.has(Tunnel) {
				c.findWay()
			}
			c.guesses = tt.guesses
			written, sent := c.written(), uint64(0)
			for _, v6 := range []bool{false, true} {
				for _, super := range superCases() {
					if super.size > 0 && c.fits(v6, super) {
						sent++
					}
					t.Run(fmt.Sprintf("%s, IPv6 %t, UDP %t", super.name, v6, super.udp), func(t *testing.T) {
						c.t = t
						c.crossWhole(v6, super)
					})
				}
			}
			if got := c.written() - written; tt.offloads.has(Tunnel) && got != sent {
				t.Errorf("%d of %d superpackets left by the uplink", got, sent)
			}
			if s := c.d.Stats(); s.Offload.Fallbacks > 0 || s.Drops[dataplane.DropBadHeader] > 0 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// findWay waits until superpackets leave by the uplink.
func (c *crossing) findWay() {
	c.t.Helper()
	eventually(c.t, "a way by the uplink", func() bool {
		c.crossWhole(false, superCase{n: 3000, size: 1000, udp: true})
		objects, _ := c.d.port.objects()
		return objects[1].Have == 1
	})
}

// written returns how many frames were written to the uplink.
func (c *crossing) written() (n uint64) {
	c.a.Must(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Attrs().Name == "ovl.up0" {
				n = l.Attrs().Statistics.RxPackets
			}
		}
		return err
	})
	return n
}

// fits reports whether a superpacket is not too long for the outer headers.
func (c *crossing) fits(v6 bool, s superCase) bool {
	return len(c.whole(v6, s)) <= 65535-encap.Overhead(c.b.addr)
}

// whole returns a superpacket with a complete checksum.
func (c *crossing) whole(v6 bool, s superCase) []byte {
	src, dst := c.ends(v6)
	data := make([]byte, s.n)
	stream(byte(s.n)).Read(data)
	p := packettest.TCP(src, dst, 1<<32-1000, data)
	if s.udp {
		p = packettest.UDP(src, dst, 1000, 2000, data)
	}
	if s.change != nil {
		p = s.change(p)
	}
	return p
}

func (c *crossing) crossWhole(v6 bool, s superCase) {
	c.t.Helper()
	whole := c.whole(v6, s)
	var ip encap.IP
	if err := encap.ParseIP(whole, &ip); err != nil {
		c.t.Fatal(err)
	}
	o, ok := encap.PartialOffload(whole, &ip)
	if s.size > 0 {
		o, ok = encap.SuperOffload(bytes.Clone(whole), &ip, s.size)
	}
	if !ok {
		c.t.Fatal("no superpacket")
	}
	partial := bytes.Clone(whole)
	at := ip.HeaderLen
	binary.BigEndian.PutUint16(partial[at+int(o.CsumOffset):], packettest.Sum(pseudoOf(whole, at, ip.Proto)))
	c.send(partial, o)
	size := int(s.size)
	if size > 0 && c.guesses && !s.udp && c.fits(v6, s) {
		size = guessedMTU - int(o.HdrLen)
	}
	c.check(v6, segmentsOf(whole, at, int(o.HdrLen), ip.Proto, size))
}

// pseudoOf returns the pseudo-header of a packet whose TCP or UDP header is at that offset.
func pseudoOf(p []byte, at int, proto byte) []byte {
	l4 := uint32(len(p) - at)
	if p[0]>>4 == 6 {
		return append(binary.BigEndian.AppendUint32(bytes.Clone(p[8:40]), l4), 0, 0, 0, proto)
	}
	return append(binary.BigEndian.AppendUint32(bytes.Clone(p[12:20]), l4), 0, proto)
}

// segmentsOf cuts a packet by the letter of the RFCs. at and payload are the offsets of the TCP or UDP header and of the payload.
func segmentsOf(p []byte, at, payload int, proto byte, size int) (all [][]byte) {
	body := p[payload:]
	if size == 0 {
		size = len(body)
	}
	for off := 0; off < len(body); off += size {
		end := min(off+size, len(body))
		s := append(bytes.Clone(p[:payload]), body[off:end]...)
		l4 := s[at:]
		field := l4[6:8]
		if proto == encap.ProtoTCP {
			field = l4[16:18]
			binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(off))
			if end < len(body) {
				l4[13] &^= 0x09 // FIN and PSH: the last one
			}
			if off > 0 {
				l4[13] &^= 0x80 // CWR: the first one
			}
		} else {
			binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		}
		if s[0]>>4 == 4 {
			binary.BigEndian.PutUint16(s[4:], binary.BigEndian.Uint16(s[4:])+uint16(off/size))
		}
		packettest.SetLength(s)
		copy(field, []byte{0, 0})
		sum := ^packettest.Sum(pseudoOf(s, at, proto), l4)
		if sum == 0 && proto == encap.ProtoUDP {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(field, sum)
		all = append(all, s)
	}
	return all
}
