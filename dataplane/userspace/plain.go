package userspace

import (
	"io"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// plain delivers to a device without offloads: one complete packet per write.
type plain struct {
	device   io.Writer
	splitter encap.Splitter
	segment  []byte
}

func newPlain(device io.Writer) *plain {
	return &plain{device: device, segment: make([]byte, maxPacket)}
}

// Write implements writer. A superpacket counts as the one packet that it is, and
// is dropped if the device refuses one of its segments.
func (d *plain) Write(p *packet, _ *encap.IP, c *counters) {
	if err := d.write(p); err != nil {
		c.drop(dataplane.DropWriteError)
		return
	}
	c.carried(len(p.ip()))
}

// Flush implements writer: nothing is put off.
func (d *plain) Flush(*counters) {}

func (d *plain) write(p *packet) error {
	p.Limit(p.ip())
	if p.GSO != encap.GSONone {
		return d.split(p)
	}
	b := p.ip()
	if p.Partial {
		complete(b[p.CsumStart:], int(p.CsumOffset))
	}
	_, err := d.device.Write(b)
	return err
}

// split writes the segments of a superpacket. Copying a segment together costs a
// fiftieth of writing it.
func (d *plain) split(p *packet) error {
	if err := d.splitter.InitOffload(p.ip(), p.Offload); err != nil {
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
