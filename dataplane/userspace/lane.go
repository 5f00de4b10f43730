package userspace

import (
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// lane carries the packets of one network from a receiveWorker, on its goroutine,
// to the network's host. It does not know what they came by.
type lane struct {
	carrier.Counters
	forwarding *atomic.Pointer[forwarding]
	writer     writer
	guesser    carrier.Guesser // of the receiver; nil if datagrams are exact
	family     int             // of the receiver's carrier
	samples    samples         // of what was dropped for its source
	packet     carrier.Packet
	ip         encap.IP
	from       *carrier.Peer // whose it is, if it is accepted
	received   carrier.Received
	queued     bool // since the last flush
}

// flush hands the host what the writer has put off.
func (l *lane) flush() {
	l.writer.Flush(&l.Counters)
	l.received.Publish()
	l.Publish()
	l.queued = false
}

// receive judges one datagram and forwards its packet to the host. It counts
// every datagram exactly once: delivered, or dropped for one reason.
func (l *lane) receive(d *carrier.Datagram) {
	f := l.forwarding.Load()
	if why, ok := l.accept(f, d); !ok {
		l.drop(f, d, why)
		return
	}
	// The datagram's VXLAN and Ethernet headers become the packet's headroom, and
	// Ethernet padding behind the packet is cut off. The fields are set one by one: a packet
	// made elsewhere and copied costs 10 ns, because its bytes are read wider than written.
	p := &l.packet
	p.Buf, p.At, p.Offload = d.Buf[:encap.HeaderLen+l.ip.Len], encap.HeaderLen, d.Offload
	if !encap.DecapECN(p.IP(), d.ECN) {
		l.drop(f, d, dataplane.DropCongestion)
		return
	}
	if !d.Exact && l.guesser != nil {
		if why, ok := l.guesser.Guess(p, &l.ip, f.mtu); !ok {
			l.drop(f, d, why)
			return
		}
	}
	if t := l.Tap(); t != nil {
		t.Show(capture.Meta{Verdict: capture.Received, Form: capture.Datagram, Peer: l.from.Addr}.With(&p.Offload), p.Datagram())
	}
	l.received.Add(l.from, l.ip.Len)
	l.writer.Write(p, &l.ip, &l.Counters)
}

// drop counts a datagram that is not delivered, and shows it as from the peer that has its outer source.
func (l *lane) drop(f *forwarding, d *carrier.Datagram, why dataplane.Drop) {
	l.Drop(why)
	t := l.Tap()
	if t == nil {
		return
	}
	m := capture.Meta{Verdict: capture.Dropped(why), Form: capture.Arrival, Peer: d.From}
	if e := f.vteps.Lookup(d.From); e != nil {
		m.Peer = e.Peer.Addr
	}
	t.Show(m, d.Buf)
}

// accept decides whether the datagram is from a known VTEP, for this one, and
// carries what that VTEP may send; if not, why. It leaves the inner header in l.ip, and the VTEP in l.from. An outer source
// that several VTEPs may have does not tell which VTEP it is: then the packet may be of any of them.
func (l *lane) accept(f *forwarding, d *carrier.Datagram) (why dataplane.Drop, ok bool) {
	vtep := f.vteps.Lookup(d.From)
	if vtep == nil && !f.isAnyPeer(d.From) {
		return l.dropSource(f, d, dataplane.DropUnknownVTEP)
	}
	dst, _, etherType, err := encap.ParseEthernet(d.Buf[encap.VXLANLen:])
	if err != nil {
		return dataplane.DropBadHeader, false
	}
	if dst != f.macs[l.family] { // the source says nothing: a peer may have our MAC
		return dataplane.DropBadMAC, false
	}
	if encap.ParseIP(d.Buf[encap.HeaderLen:], &l.ip) != nil || etherType != etherTypeOf(l.ip.Version) {
		return dataplane.DropBadHeader, false
	}
	if l.from = f.sender(vtep, l.ip.Src); l.from == nil {
		l.from = f.otherSender(d.From, l.ip.Src)
	}
	if l.from == nil {
		return l.dropSource(f, d, dataplane.DropBadSource)
	}
	if !f.isOwn(l.ip.Dst) {
		return dataplane.DropBadDestination, false
	}
	return 0, true
}

func etherTypeOf(version uint8) uint16 {
	if version == 4 {
		return encap.EtherTypeIPv4
	}
	return encap.EtherTypeIPv6
}
