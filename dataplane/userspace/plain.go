package userspace

import (
	"encoding/binary"
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

// Write is that of queue. A superpacket counts as the one packet that it is, and
// is dropped if the device refuses one of its segments.
func (d *plain) Write(p *packet, c *counters) {
	b := p.ip()
	var err error
	switch {
	case p.gso != gsoNone:
		err = d.split(p)
	case p.partial:
		complete(b[p.csumStart:], int(p.csumOffset))
		fallthrough
	default:
		_, err = d.device.Write(b)
	}
	if err != nil {
		c.drop(dataplane.DropDeliver)
		return
	}
	c.carried(len(b))
}

// complete puts the checksum of l4, whose field holds its pseudo-header sum, into
// that field. 0 is written as its equal 0xffff: for UDP it means no checksum.
func complete(l4 []byte, field int) {
	sum := ^encap.Sum(l4, 0)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[field:], sum)
}

// split writes the segments of a superpacket. Copying a segment together costs a
// fiftieth of writing it.
func (d *plain) split(p *packet) error {
	b := p.ip()
	headers := int(p.csumStart) + int(b[p.csumStart+12]>>4)*4
	if err := d.splitter.Init(b, headers+int(p.gsoSize)); err != nil {
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
