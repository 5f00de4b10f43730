package userspace

import (
	"errors"
	"io"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// vnetDevice is a device that takes packets with vnet headers.
type vnetDevice interface {
	// writeParts writes one packet, given in parts. refused says that the device
	// does not take such a superpacket, and ok that it was taken.
	writeParts(h *[vnetLen]byte, parts [][]byte) (ok, refused bool)
	// Write writes a vnet header and the packet that follows it. Another goroutine
	// than that of writeParts may call it.
	io.Writer
}

// vnetWriter delivers to a device that does offloads. It joins what is written
// between two flushes to superpackets, and leaves checksums as partial as they came.
type vnetWriter struct {
	device    vnetDevice
	coalescer *encap.Coalescer
	tcp, udp  bool // joined
	// maxLen is the least of the packets since the last Flush, or 0. It goes for all
	// TCP among them: what they were joined to does not tell, and less is harmless.
	maxLen uint16
	header [vnetLen]byte
	one    [1][]byte

	// What the device refuses is written in segments.
	split *plain
	whole []byte
}

func newVnetWriter(device vnetDevice, tcp, udp bool) *vnetWriter {
	w := &vnetWriter{device: device, tcp: tcp, udp: udp, coalescer: encap.NewCoalescer(tcp, udp), whole: make([]byte, bufLen)}
	w.split = newPlain((*completeWriter)(w))
	return w
}

// Write implements queue.
func (w *vnetWriter) Write(p *packet, ip *encap.IP, c *counters) {
	if p.maxLen != 0 && (w.maxLen == 0 || p.maxLen < w.maxLen) {
		w.maxLen = p.maxLen
	}
	if !w.coalescer.Add(p.ip(), ip, p.Offload) {
		w.Flush(c)
		w.coalescer.Add(p.ip(), ip, p.Offload)
	}
}

// Answer implements queue.
func (w *vnetWriter) Answer(b []byte) { _, _ = w.device.Write(b[headroom-vnetLen:]) }

// Flush implements queue.
func (w *vnetWriter) Flush(c *counters) {
	items := w.coalescer.Flush()
	for i := range items {
		item := &items[i]
		if w.maxLen != 0 && item.Partial && item.CsumOffset == tcpChecksum {
			limitSegments(&item.Offload, item.Parts[0], int(w.maxLen))
		}
		w.deliver(item, c)
	}
	w.maxLen = 0
}

// deliver writes one item and counts its packets.
func (w *vnetWriter) deliver(item *encap.Item, c *counters) {
	n := len(item.Parts)
	encodeVnet(&w.header, &item.Offload)
	ok, refused := w.device.writeParts(&w.header, item.Parts)
	if refused && item.GSO != encap.GSONone {
		c.offload.Fallbacks++
		ok = w.deliverSplit(item)
		if n > 1 {
			w.giveUp(item.GSO)
		}
	}
	if !ok {
		c.dropAll(n, dataplane.DropWriteError)
		return
	}
	c.carriedAll(n, item.Len+(n-1)*int(item.HdrLen))
	if item.GSO != encap.GSONone {
		c.offload.RxSuperpackets++
	}
	if n > 1 {
		c.offload.RxSegments += uint64(n)
	}
}

// deliverSplit writes the segments of a superpacket.
func (w *vnetWriter) deliverSplit(item *encap.Item) bool {
	p := packet{buf: w.whole[:headroom], Offload: item.Offload}
	for _, part := range item.Parts {
		p.buf = append(p.buf, part...)
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

func (w *completeWriter) Write(b []byte) (int, error) {
	w.header = [vnetLen]byte{}
	w.one[0] = b
	if ok, _ := w.device.writeParts(&w.header, w.one[:]); !ok {
		return 0, errRefused
	}
	return len(b), nil
}
