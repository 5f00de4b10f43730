package userspace

import (
	"net/netip"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// lane carries the packets of one network from a receiveWorker, on its goroutine,
// to the network's host. It does not know what they came by.
type lane struct {
	counters
	forwarding *atomic.Pointer[forwarding]
	writer     writer
	guesser    guesser        // of the receiver; nil if it is always told
	family     int            // of the receiver's carrier
	anyFrom    []netip.Prefix // see Config.AnyPeerFrom
	samples    samples        // of what was dropped for its source
	packet     packet
	ip         encap.IP
	queued     bool // since the last flush
}

// flush hands the host what the writer has put off.
func (l *lane) flush() {
	l.writer.Flush(&l.counters)
	l.publish()
	l.queued = false
}

// receive judges one datagram and forwards its packet to the host. It counts
// every datagram exactly once: delivered, or dropped for one reason.
func (l *lane) receive(d *datagram) {
	f := l.forwarding.Load()
	if why, ok := l.accept(f, d); !ok {
		l.drop(why)
		return
	}
	// The datagram's VXLAN and Ethernet headers become the packet's headroom, and
	// Ethernet padding behind the packet is cut off. The fields are set one by one: a packet
	// made elsewhere and copied costs 10 ns, because its bytes are read wider than written.
	p := &l.packet
	p.buf, p.at, p.Offload = d.buf[:encap.HeaderLen+l.ip.Len], encap.HeaderLen, d.offload
	if !encap.DecapECN(p.ip(), d.ecn) {
		l.drop(dataplane.DropCongestion)
		return
	}
	if !d.exact && l.guesser != nil {
		if why, ok := l.guesser.guess(p, &l.ip, f.mtu); !ok {
			l.drop(why)
			return
		}
	}
	l.writer.Write(p, &l.ip, &l.counters)
}

// accept decides whether the datagram is from a known VTEP, for this one, and
// carries what that VTEP may send; if not, why. It leaves the inner header in l.ip. A source
// that several VTEPs may have tells nothing of the VTEP: then the packet has to be one of any of them.
func (l *lane) accept(f *forwarding, d *datagram) (why dataplane.Drop, ok bool) {
	vtep := f.vteps.Lookup(d.from)
	if vtep == nil && !l.isAnyPeer(d.from) {
		return l.dropSource(f, d, dataplane.DropUnknownVTEP)
	}
	dst, _, etherType, err := encap.ParseEthernet(d.buf[encap.VXLANLen:])
	if err != nil {
		return dataplane.DropBadHeader, false
	}
	if dst != f.macs[l.family] && !isBroadcast(dst) { // the source says nothing: a peer may have our MAC
		return dataplane.DropBadMAC, false
	}
	if encap.ParseIP(d.buf[encap.HeaderLen:], &l.ip) != nil || etherType != etherTypeOf(l.ip.Version) {
		return dataplane.DropBadHeader, false
	}
	// Peers are compared and not entries: a VTEP has an entry for each of its leases.
	if from := f.subnets.Lookup(l.ip.Src); from == nil || vtep != nil && from.peer != vtep.peer {
		return l.dropSource(f, d, dataplane.DropBadSource)
	}
	if !f.isOwn(l.ip.Dst) {
		return dataplane.DropBadDestination, false
	}
	return 0, true
}

// isAnyPeer reports whether any peer's packets may have that outer source, which is of no peer.
func (l *lane) isAnyPeer(from netip.Addr) bool {
	for i := range l.anyFrom {
		if l.anyFrom[i].Contains(from) {
			return true
		}
	}
	return false
}

// isBroadcast reports whether m is for every VTEP. The kernel's vxlan device
// accepts such frames too.
func isBroadcast(m encap.MAC) bool { return m == encap.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

func etherTypeOf(version uint8) uint16 {
	if version == 4 {
		return encap.EtherTypeIPv4
	}
	return encap.EtherTypeIPv6
}
