package carrier

import (
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/cpu"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
)

// publishEvery is the number of packets after which Counters publish what they
// counted, if their worker was never idle in between.
const publishEvery = 64

// Counters are those of one worker. Only its goroutine counts; anybody may add
// them up. They count in plain memory and publish when the worker is idle, because two
// atomic additions cost as much as all the headers of a packet. Beside them is the Point where
// the worker shows its packets to captures.
type Counters struct {
	capture.Point
	packets, bytes uint64                 // counted, not yet published
	Offload        dataplane.OffloadStats // likewise; its worker adds to the fields
	to             *Peer                  // that the packets were sent to; nil: they were delivered

	_         cpu.CacheLinePad // readers must not take the line that every packet writes
	published struct {
		packets, bytes atomic.Uint64
		drops          [dataplane.NumDrops]atomic.Uint64
		offload        [7]atomic.Uint64
	}
	_ cpu.CacheLinePad
}

// Carried counts a packet of n bytes that was delivered.
func (c *Counters) Carried(n int) { c.CarriedAll(1, n) }

// CarriedAll counts packets with that number of bytes together that were delivered.
func (c *Counters) CarriedAll(packets, bytes int) {
	c.packets += uint64(packets)
	c.bytes += uint64(bytes)
	if c.packets >= publishEvery {
		c.Publish()
	}
}

// Sent counts packets with that number of bytes together that were sent to p.
func (c *Counters) Sent(p *Peer, packets, bytes int) {
	if c.to != p {
		c.Publish() // what was sent to another one
		c.to = p
	}
	c.CarriedAll(packets, bytes)
}

// Drop counts one packet dropped for the given reason.
func (c *Counters) Drop(why dataplane.Drop) { c.DropAll(1, why) }

// DropAll counts packets dropped for the given reason.
func (c *Counters) DropAll(packets int, why dataplane.Drop) {
	c.published.drops[why].Add(uint64(packets))
}

// DropPacket counts one IP packet dropped for the given reason, and shows it. to is the VTEP that it is for,
// if it is for one.
func (c *Counters) DropPacket(ip []byte, to netip.Addr, why dataplane.Drop) {
	c.Drop(why)
	if t := c.Tap(); t != nil {
		t.Show(capture.Meta{Verdict: capture.Dropped(why), Form: capture.IP, Peer: to}, ip)
	}
}

// Dropped returns how many packets were dropped for the given reason.
func (c *Counters) Dropped(why dataplane.Drop) uint64 { return c.published.drops[why].Load() }

// Publish makes everything counted visible to the readers.
func (c *Counters) Publish() {
	if c.packets > 0 {
		c.published.packets.Add(c.packets)
		c.published.bytes.Add(c.bytes)
		if c.to != nil {
			c.to.sent.Add(c.bytes)
		}
		c.packets, c.bytes = 0, 0
	}
	if c.Offload != (dataplane.OffloadStats{}) {
		for i, n := range c.Offload.Fields() {
			if *n > 0 {
				c.published.offload[i].Add(*n)
			}
		}
		c.Offload = dataplane.OffloadStats{}
	}
}

// Received counts what one worker accepts from peers: in plain memory for as long as the next packet is of the
// same peer, as those of a batch mostly are. Only the worker's goroutine uses it.
type Received struct {
	from  *Peer
	bytes uint64
}

// Add counts a packet of n bytes from p.
func (r *Received) Add(p *Peer, n int) {
	if r.from != p {
		r.Publish()
		r.from = p
	}
	r.bytes += uint64(n)
}

// Publish makes everything counted visible to the readers.
func (r *Received) Publish() {
	if r.bytes > 0 {
		r.from.received.Add(r.bytes)
		r.bytes = 0
	}
}

// AddTo adds what the counters have published to s.
func (c *Counters) AddTo(packets, bytes *uint64, s *dataplane.Stats) {
	*packets += c.published.packets.Load()
	*bytes += c.published.bytes.Load()
	for i := range s.Drops {
		s.Drops[i] += c.published.drops[i].Load()
	}
	for i, n := range s.Offload.Fields() {
		*n += c.published.offload[i].Load()
	}
}
