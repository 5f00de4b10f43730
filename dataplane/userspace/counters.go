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
	offload        dataplane.OffloadStats

	_         cpu.CacheLinePad // readers must not take the line that every packet writes
	published struct {
		packets, bytes atomic.Uint64
		drops          [dataplane.NumDrops]atomic.Uint64
		offload        [numOffloadStats]atomic.Uint64
	}
	_ cpu.CacheLinePad
}

// carried counts a packet of n bytes that was sent or delivered.
func (c *counters) carried(n int) { c.carriedAll(1, n) }

// carriedAll counts packets with that number of bytes together.
func (c *counters) carriedAll(packets, bytes int) {
	c.packets += uint64(packets)
	c.bytes += uint64(bytes)
	if c.packets >= publishEvery {
		c.publish()
	}
}

// drop counts one packet dropped for the given reason.
func (c *counters) drop(why dataplane.Drop) { c.dropAll(1, why) }

func (c *counters) dropAll(packets int, why dataplane.Drop) {
	c.published.drops[why].Add(uint64(packets))
}

// publish makes everything counted visible to the readers.
func (c *counters) publish() {
	if c.packets > 0 {
		c.published.packets.Add(c.packets)
		c.published.bytes.Add(c.bytes)
		c.packets, c.bytes = 0, 0
	}
	if c.offload != (dataplane.OffloadStats{}) {
		for i, n := range offloadFields(&c.offload) {
			if *n > 0 {
				c.published.offload[i].Add(*n)
			}
		}
		c.offload = dataplane.OffloadStats{}
	}
}

const numOffloadStats = 7

// offloadFields lists the fields of s, so that they can be added up in a loop.
func offloadFields(s *dataplane.OffloadStats) [numOffloadStats]*uint64 {
	return [...]*uint64{&s.TxSuperpackets, &s.TxSegments, &s.TxBatches, &s.RxSuperpackets, &s.RxSegments, &s.RxBatches, &s.Fallbacks}
}

// addTo adds what the counters have published to s.
func (c *counters) addTo(packets, bytes *uint64, s *dataplane.Stats) {
	*packets += c.published.packets.Load()
	*bytes += c.published.bytes.Load()
	for i := range s.Drops {
		s.Drops[i] += c.published.drops[i].Load()
	}
	for i, n := range offloadFields(&s.Offload) {
		*n += c.published.offload[i].Load()
	}
}
