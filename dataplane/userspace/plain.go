package userspace

import (
	"io"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// plain delivers to a device without offloads: one complete packet per write.
type plain struct {
	device   io.Writer
	splitter encap.Splitter
	segment  []byte
}

func newPlain(device io.Writer) *plain {
	return &plain{device: device, segment: make([]byte, carrier.MaxPacket)}
}

// Write implements writer. A superpacket counts as the one packet that it is, and
// is dropped if the device refuses one of its segments.
func (d *plain) Write(p *carrier.Packet, _ *encap.IP, c *carrier.Counters) {
	if err := d.write(p); err != nil {
		c.DropPacket(p.IP(), netip.Addr{}, dataplane.DropWriteError)
		return
	}
	c.Carried(len(p.IP()))
}

// Flush implements writer: nothing is put off.
func (d *plain) Flush(*carrier.Counters) {}

func (d *plain) write(p *carrier.Packet) error {
	p.Limit(p.IP())
	if p.GSO != encap.GSONone {
		return d.split(p)
	}
	b := p.IP()
	if p.Partial {
		p.Complete(b)
	}
	_, err := d.device.Write(b)
	return err
}

// split writes the segments of a superpacket. Copying a segment together costs a
// fiftieth of writing it.
func (d *plain) split(p *carrier.Packet) error {
	if err := d.splitter.InitOffload(p.IP(), p.Offload); err != nil {
		return err
	}
	for {
		n, payload, ok := d.splitter.Next(d.segment)
		if !ok {
			return nil
		}
		n += copy(d.segment[n:], payload)
		if _, err := d.device.Write(d.segment[:n]); err != nil {
			return err
		}
	}
}
