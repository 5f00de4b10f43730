package userspace

import (
	"sync/atomic"

	"golang.org/x/sys/cpu"

	"github.com/overlayd/overlayd/dataplane"
)

// publishEvery is the number of packets after which counters publishes what it
// counted, if its worker was never idle in between.
const publishEvery = 64

// counters are those of one worker. Only its goroutine counts; anybody may add
// them up. It counts in plain memory and publishes when it is idle, because two
// atomic additions cost as much as all the headers of a packet.
type counters struct {
	packets, bytes uint64 // counted, not yet published

	_         cpu.CacheLinePad // readers must not take the line that every packet writes
	published struct {
		packets, bytes atomic.Uint64
		drops          [dataplane.NumDrops]atomic.Uint64
	}
	_ cpu.CacheLinePad
}

// carried counts a packet of n bytes that was sent or delivered.
func (c *counters) carried(n int) {
	c.packets++
	c.bytes += uint64(n)
	if c.packets == publishEvery {
		c.publish()
	}
}

// drop counts a packet that was not.
func (c *counters) drop(why dataplane.Drop) { c.published.drops[why].Add(1) }

// publish makes everything counted visible to the readers.
func (c *counters) publish() {
	if c.packets == 0 {
		return
	}
	c.published.packets.Add(c.packets)
	c.published.bytes.Add(c.bytes)
	c.packets, c.bytes = 0, 0
}

// stats adds up the counters of the two directions.
func stats(send, receive *counters) dataplane.Stats {
	s := dataplane.Stats{
		TxPackets: send.published.packets.Load(), TxBytes: send.published.bytes.Load(),
		RxPackets: receive.published.packets.Load(), RxBytes: receive.published.bytes.Load(),
	}
	for i := range s.Drops {
		s.Drops[i] = send.published.drops[i].Load() + receive.published.drops[i].Load()
	}
	return s
}
