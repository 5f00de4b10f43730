package capture

import "slices"

// Capture takes what workers show. But for Close and Done it is for one goroutine.
type Capture struct {
	hub      *Hub
	filter   Filter
	ringSize int
	done     chan struct{} // closed when nothing more is shown

	rings []*ring // guarded by hub.mu
	past  uint64  // guarded by hub.mu: lost by rings that are gone
}

// add has c listen at a member, whose Tap is still to be published.
func (c *Capture) add(m *member) {
	r := newRing(c.ringSize)
	c.rings = append(c.rings, r)
	m.sinks = append(m.sinks, sink{ring: r, capture: c})
}

// Append appends frames of packets to b, the oldest first, until b has at least size bytes or no frame
// is left. Packets that different workers show at the same moment may come in another order.
func (c *Capture) Append(b []byte, size int) []byte {
	rings := c.current()
	for len(b) < size {
		var from *ring
		var frame []byte
		for _, r := range rings {
			if f := r.peek(); f != nil && (frame == nil || timeOf(f) < timeOf(frame)) {
				from, frame = r, f
			}
		}
		if frame == nil {
			break
		}
		b = append(b, frame...)
		from.release(len(frame))
	}
	return b
}

// current returns the rings, without those that are empty and stay so.
func (c *Capture) current() []*ring {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.rings = slices.DeleteFunc(c.rings, func(r *ring) bool {
		if !r.gone.Load() || r.peek() != nil {
			return false
		}
		c.past += r.lost.Load()
		return true
	})
	return slices.Clone(c.rings)
}

// Lost returns how many packets found no room, because Append was not called often enough.
func (c *Capture) Lost() uint64 {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	n := c.past
	for _, r := range c.rings {
		n += r.lost.Load()
	}
	return n
}

// Done is closed when the capture has ended: what Append returns then is the last of it.
func (c *Capture) Done() <-chan struct{} { return c.done }

// Close ends the capture. It may be called more than once.
func (c *Capture) Close() {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.hub.end(c)
}
