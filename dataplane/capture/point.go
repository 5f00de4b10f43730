package capture

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/encap"
)

// Point is the place of one worker where captures listen. The zero value is ready.
type Point struct{ tap atomic.Pointer[Tap] }

// Tap returns where to show packets; nil: nobody listens.
func (p *Point) Tap() *Tap { return p.tap.Load() }

// Tap is what listens at a Point now. It never changes: a Point gets another one.
type Tap struct {
	vni   uint32 // of the worker's network; 0: it has none of its own
	sinks []sink
}

// sink is one capture, as one worker sees it.
type sink struct {
	*ring
	capture *Capture
}

// Show copies a packet, given in parts, for every capture that wants it. It keeps nothing of its arguments, allocates nothing
// and never waits. Only the Point's worker may call it.
func (t *Tap) Show(m Meta, parts ...[]byte) {
	ns := int64(0)
	for i := range t.sinks {
		s := &t.sinks[i]
		if !s.capture.filter.wants(&m) {
			continue
		}
		if ns == 0 {
			ns = time.Now().UnixNano()
		}
		s.put(&m, t.vni, ns, s.capture.filter.limit(m.Form), parts)
	}
}

// Filter is what a capture wants.
type Filter struct {
	Peers []netip.Addr // underlay addresses; empty: packets of all, and those of nobody known
	Drops bool         // only what was dropped
	Snap  int          // bytes of each packet, from the inner Ethernet header on; 0: all
}

func (f *Filter) wants(m *Meta) bool {
	return (!f.Drops || m.Verdict.IsDrop()) && (len(f.Peers) == 0 || slices.Contains(f.Peers, m.Peer))
}

// limit returns how many bytes of a packet of that form are wanted.
func (f *Filter) limit(form Form) int {
	switch {
	case f.Snap == 0:
		return maxPacket
	case form == IP: // whoever shows it puts an Ethernet header in front
		return max(0, f.Snap-encap.EthernetLen)
	}
	return f.Snap + encap.VXLANLen
}
