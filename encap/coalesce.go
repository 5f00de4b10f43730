package encap

import "encoding/binary"

// The sizes of a Coalescer. They bound its work per packet and its memory, about
// 230 KB; if one is reached, fewer packets are merged and none is lost.
const (
	// MaxCoalesced is the number of packets that may become one. With the vnet
	// header it stays far below the 1024 buffers that one writev takes.
	MaxCoalesced = 128
	// maxCoalescedUDP is what every kernel takes: UDP_MAX_SEGMENTS before Linux 6.9.
	maxCoalescedUDP = 64
	maxPacketLen    = 65535

	coalesceItems = 256 // packets to write per flush
	coalesceBanks = 64  // of those, the ones that can hold merged packets
	coalesceFlows = 16  // flows that can grow at a time
)

// Item is one packet to be written to the host: one that was added, or a
// superpacket of several.
type Item struct {
	// Parts are the bytes of the packet in order: the first packet whole, then the
	// payloads of those merged into it. They are those that were added, borrowed.
	Parts [][]byte
	Len   int // of all Parts together, in bytes
	Offload

	single [1][]byte // what Parts is until something is merged
}

// Coalescer merges segments of TCP connections and equal datagrams of UDP flows
// into superpackets, as the kernel's GRO does, so that a host takes them through
// its stack once. It keeps references to the packets and copies nothing, and
// has neither timer nor allocation: the caller adds what one receive brought,
// flushes, and writes the items in order. Packets of one flow stay in order.
//
// Only packets that are equal in everything but what a split would make differ
// are merged, and only when their checksums are partial or were verified here:
// the checksum of a superpacket is partial, so nobody can verify it later.
// A packet that cannot be merged, because of damage, odd flags, options, another protocol or because it is
// a fragment, passes through unchanged, and later packets of its flow stay behind it.
type Coalescer struct {
	tcp, udp bool

	items  []Item
	nItems int
	banks  [][MaxCoalesced][]byte // Parts of the items that have several
	nBanks int

	flows  [coalesceFlows]coalesceFlow // the items that can still grow
	nFlows int
	victim int // the flow to give way when another needs its place

	// maxLen is the least MaxLen of the packets since the last Flush, or 0. It holds for all
	// TCP among them: what they were merged to does not tell, and less is harmless.
	maxLen  uint16
	flushed bool
}

// coalesceFlow is the item at the end of a flow, to which the next packet of the
// flow may be added.
type coalesceFlow struct {
	key      flowKey
	item     *Item
	first    segment
	seq      uint32 // sequence number that the next TCP segment must have
	verified bool   // the first packet was
}

// NewCoalescer returns a Coalescer that merges TCP, UDP or both: the protocols of which the device
// takes superpackets.
func NewCoalescer(tcp, udp bool) *Coalescer {
	return &Coalescer{
		tcp:   tcp,
		udp:   udp,
		items: make([]Item, coalesceItems),
		banks: make([][MaxCoalesced][]byte, coalesceBanks),
	}
}

// Add takes the packet b that ParseIP read into ip, with what is left to do to it:
// nothing, a partial checksum (which is trusted), or all that makes a superpacket,
// to which nothing is merged. Bytes behind ip.Len are left out. The packet is
// borrowed until the items of the next Flush have been written, and its
// headers may be changed. Add returns false, and has taken nothing, if there
// is no room before a Flush.
func (c *Coalescer) Add(b []byte, ip *IP, o Offload) bool {
	if c.flushed {
		c.nItems, c.nBanks, c.nFlows, c.maxLen, c.flushed = 0, 0, 0, 0, false
	}
	if c.nItems == len(c.items) {
		return false
	}
	if o.MaxLen != 0 && (c.maxLen == 0 || o.MaxLen < c.maxLen) {
		c.maxLen = o.MaxLen
	}
	b = b[:ip.Len]
	var key flowKey
	if !key.parse(b, ip) {
		if key.proto != 0 {
			c.closeFragmented(&key)
		}
		c.append(b, o)
		return true
	}
	f := c.find(&key)
	var s segment
	if o.GSO != GSONone || !c.merges(ip.Proto) || !s.parse(b, ip, o.Partial) {
		c.close(f)
		c.append(b, o)
		return true
	}
	if f >= 0 && c.extend(&c.flows[f], &s) {
		if s.last || s.size < c.flows[f].first.size {
			c.close(f)
		}
		return true
	}
	c.close(f)
	item := c.append(b, o)
	if !s.last {
		c.open(coalesceFlow{key: key, item: item, first: s, seq: s.seq + uint32(s.size)})
	}
	return true
}

// Flush returns what to write, in order. The items are valid until the next Add.
func (c *Coalescer) Flush() []Item {
	if c.flushed {
		return nil
	}
	c.flushed = true
	items := c.items[:c.nItems]
	for i := range items {
		item := &items[i]
		if len(item.Parts) > 1 {
			item.finish()
		}
		if c.maxLen != 0 && item.Partial && item.CsumOffset == tcpChecksumOff {
			item.MaxLen = c.maxLen
			item.Limit(item.Parts[0])
		}
	}
	return items
}

func (c *Coalescer) merges(proto uint8) bool {
	return proto == ProtoTCP && c.tcp || proto == ProtoUDP && c.udp
}

// append adds an item of one packet.
func (c *Coalescer) append(b []byte, o Offload) *Item {
	item := &c.items[c.nItems]
	c.nItems++
	item.single[0] = b
	item.Parts = item.single[:]
	item.Len = len(b)
	item.Offload = o
	return item
}

// extend adds s to the item of f, and returns false if they do not belong together.
func (c *Coalescer) extend(f *coalesceFlow, s *segment) bool {
	item := f.item
	n := len(item.Parts)
	if !f.follows(s) || n == 1 && c.nBanks == len(c.banks) {
		return false
	}
	if !f.verified && !f.first.verify() {
		return false
	}
	f.verified = true
	if !s.verify() {
		return false
	}
	if n == 1 {
		item.Parts = append(c.banks[c.nBanks][:0], item.Parts[0])
		item.Offload = f.first.offload()
		c.nBanks++
	}
	item.Parts = append(item.Parts, s.b[s.headers:])
	item.Len += s.size
	f.seq += uint32(s.size)
	if s.proto == ProtoTCP {
		f.first.b[f.first.l4+13] |= s.b[s.l4+13] & tcpPSH
	}
	return true
}

// find returns the index of the open flow with that key, or -1.
func (c *Coalescer) find(key *flowKey) int {
	for i := range c.flows[:c.nFlows] {
		if k := &c.flows[i].key; k.ports == key.ports && *k == *key {
			return i
		}
	}
	return -1
}

// open lets the item at the end of a flow grow, at the cost of another if need be.
func (c *Coalescer) open(f coalesceFlow) {
	if c.nFlows < len(c.flows) {
		c.flows[c.nFlows] = f
		c.nFlows++
		return
	}
	c.victim = (c.victim + 1) % len(c.flows)
	c.flows[c.victim] = f
}

// close ends the growth of flow i, if it is one.
func (c *Coalescer) close(i int) {
	if i >= 0 {
		c.nFlows--
		c.flows[i] = c.flows[c.nFlows]
	}
}

// closeFragmented closes the flows that a fragment may be of: it has no ports.
func (c *Coalescer) closeFragmented(key *flowKey) {
	for i := c.nFlows - 1; i >= 0; i-- {
		k := c.flows[i].key
		k.ports = 0
		if k == *key {
			c.close(i)
		}
	}
}

// finish makes the headers of the first packet those of all Parts.
func (t *Item) finish() {
	b, l4 := t.Parts[0], int(t.CsumStart)
	if b[0]>>4 == 4 {
		binary.BigEndian.PutUint16(b[2:4], uint16(t.Len))
		binary.BigEndian.PutUint16(b[10:12], 0)
		binary.BigEndian.PutUint16(b[10:12], ^ipv4Sum(b))
	} else {
		binary.BigEndian.PutUint16(b[4:6], uint16(t.Len-ipv6Len))
	}
	proto := uint8(ProtoTCP)
	if t.GSO == GSOUDP {
		proto = ProtoUDP
		binary.BigEndian.PutUint16(b[l4+4:], uint16(t.Len-l4))
	}
	binary.BigEndian.PutUint16(b[l4+int(t.CsumOffset):], pseudoSum(b, proto, t.Len-l4))
}
