package userspace

import (
	"errors"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// vnetDevice is a device that takes packets with vnet headers.
type vnetDevice interface {
	// writeParts writes one packet, given in parts. refused is true if the device
	// does not take such a superpacket, and ok that it was taken.
	writeParts(h *[vnetLen]byte, parts [][]byte) (ok, refused bool)
}

// vnetWriter delivers to a device that does offloads. It joins what is written
// between two flushes to superpackets, and leaves checksums as partial as they came.
type vnetWriter struct {
	device    vnetDevice
	coalescer *encap.Coalescer
	tcp, udp  bool // joined
	header    [vnetLen]byte
	one       [1][]byte

	// What the device refuses is written in segments.
	split *plain
	whole []byte
}

func newVnetWriter(device vnetDevice, tcp, udp bool) *vnetWriter {
	w := &vnetWriter{device: device, tcp: tcp, udp: udp, coalescer: encap.NewCoalescer(tcp, udp), whole: make([]byte, carrier.MaxPacket)}
	w.split = newPlain((*completeWriter)(w))
	return w
}

// Write implements writer.
func (w *vnetWriter) Write(p *carrier.Packet, ip *encap.IP, c *carrier.Counters) {
	if !w.coalescer.Add(p.IP(), ip, p.Offload) {
		w.Flush(c)
		w.coalescer.Add(p.IP(), ip, p.Offload)
	}
}

// Flush implements writer.
func (w *vnetWriter) Flush(c *carrier.Counters) {
	items := w.coalescer.Flush()
	for i := range items {
		w.deliver(&items[i], c)
	}
}

// deliver writes one item and counts its packets.
func (w *vnetWriter) deliver(item *encap.Item, c *carrier.Counters) {
	n := len(item.Parts)
	encodeVnet(&w.header, &item.Offload)
	ok, refused := w.device.writeParts(&w.header, item.Parts)
	if refused && item.GSO != encap.GSONone {
		c.Offload.Fallbacks++
		ok = w.deliverSplit(item)
		if n > 1 {
			w.giveUp(item.GSO)
		}
	}
	if !ok {
		c.DropAll(n, dataplane.DropWriteError)
		if t := c.Tap(); t != nil {
			t.Show(capture.Meta{Verdict: capture.Dropped(dataplane.DropWriteError), Form: capture.IP}.With(&item.Offload), item.Parts...)
		}
		return
	}
	c.CarriedAll(n, item.Len+(n-1)*int(item.HdrLen))
	if item.GSO != encap.GSONone {
		c.Offload.RxSuperpackets++
	}
	if n > 1 {
		c.Offload.RxSegments += uint64(n)
	}
}

// deliverSplit writes the segments of a superpacket.
func (w *vnetWriter) deliverSplit(item *encap.Item) bool {
	p := carrier.Packet{Buf: w.whole[:0], Offload: item.Offload}
	for _, part := range item.Parts {
		p.Buf = append(p.Buf, part...)
	}
	return w.split.write(&p) == nil
}

// giveUp stops joining what the device does not take joined.
func (w *vnetWriter) giveUp(gso encap.GSO) {
	if gso == encap.GSOUDP {
		w.udp = false
	} else {
		w.tcp = false
	}
	w.coalescer = encap.NewCoalescer(w.tcp, w.udp) // the items at hand are still the old one's
}

// completeWriter writes complete packets to the device of a vnetWriter.
type completeWriter vnetWriter

var errRefused = errors.New("the device refused a segment")

// Write implements io.Writer.
func (w *completeWriter) Write(b []byte) (int, error) {
	w.header = [vnetLen]byte{}
	w.one[0] = b
	if ok, _ := w.device.writeParts(&w.header, w.one[:]); !ok {
		return 0, errRefused
	}
	return len(b), nil
}
