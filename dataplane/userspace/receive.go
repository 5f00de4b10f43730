package userspace

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// receiveWorker carries packets from the underlay to one queue, on one goroutine.
type receiveWorker struct {
	counters
	onIdle   func() // flush, made once: it would be an allocation per run
	table    *atomic.Pointer[table]
	receiver receiver
	queue    queue
	local    local
	datagram datagram
	packet   packet
	ip       encap.IP
}

// run receives until ctx ends, or the receiver does.
func (w *receiveWorker) run(ctx context.Context, onError onReadError) error {
	if w.onIdle == nil {
		w.onIdle = w.flush
	}
	defer w.flush()
	for {
		if err := w.receiver.Receive(&w.datagram, w.onIdle); err == nil {
			w.receive(&w.datagram)
		} else if ctx.Err() != nil {
			return nil
		} else if err := onError(ctx, err); err != nil {
			return err
		}
	}
}

// flush hands the host what the queue has put off.
func (w *receiveWorker) flush() {
	w.queue.Flush(&w.counters)
	w.publish()
}

// receive judges one datagram and forwards its packet to the host. It counts
// every datagram exactly once: delivered, or dropped for one reason.
func (w *receiveWorker) receive(d *datagram) {
	t := w.table.Load()
	if why, ok := w.accept(t, d); !ok {
		w.drop(why)
		return
	}
	// The datagram's VXLAN and Ethernet headers become the packet's headroom, and
	// Ethernet padding behind the packet is cut off.
	w.packet = packet{buf: d.buf[:headroom+w.ip.Len]}
	if !encap.DecapECN(w.packet.ip(), d.ecn) {
		w.drop(dataplane.DropCongestion)
		return
	}
	if !w.offloads(t.mtu, d.gsoSize) {
		w.drop(dataplane.DropMalformed)
		return
	}
	w.queue.Write(&w.packet, &w.ip, &w.counters)
}

// accept decides whether the datagram is from a known VTEP, for this one, and
// carries what that VTEP may send; if not, why. It leaves the inner header in w.ip.
func (w *receiveWorker) accept(t *table, d *datagram) (why dataplane.Drop, ok bool) {
	vtep := t.vteps.Lookup(d.from)
	if vtep == nil {
		return dataplane.DropUnknownVTEP, false
	}
	switch vni, err := encap.ParseVXLAN(d.buf); {
	case err == encap.ErrShort:
		return dataplane.DropMalformed, false
	case err != nil || vni != w.local.vni:
		return dataplane.DropBadVNI, false
	}
	dst, src, etherType, err := encap.ParseEthernet(d.buf[encap.VXLANLen:])
	if err != nil {
		return dataplane.DropMalformed, false
	}
	if dst != w.local.mac && !isBroadcast(dst) || src == w.local.mac {
		return dataplane.DropBadMAC, false
	}
	if encap.ParseIP(d.buf[headroom:], &w.ip) != nil || etherType != etherTypeOf(w.ip.Version) || !deliverable(w.ip.Dst) {
		return dataplane.DropMalformed, false
	}
	// The VTEP is compared by its address: it may have an entry for each of its leases.
	if from := t.routes.Lookup(w.ip.Src); from == nil || from.addr != vtep.addr {
		return dataplane.DropBadSource, false
	}
	return 0, true
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

// deliverable reports whether an overlay packet may have that destination. The
// overlay carries unicast only, and nobody else may talk to a host's loopback.
// Whether the host is to forward it is for its routes and firewall to say.
func deliverable(dst netip.Addr) bool {
	dst = dst.Unmap()
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return !dst.IsMulticast() && !dst.IsLoopback() && !dst.IsUnspecified() && dst != broadcast
}

// guessedMTU is the largest packet that every destination behind this host is
// taken to accept: the least MTU of IPv6. A superpacket does not tell its
// segments' size; smaller than sent is harmless, but a pod whose own MTU is
// exceeded never gets the segment, however often TCP sends it again.
const guessedMTU = 1280

// offloads finds out what w.packet leaves to be done. Between hosts of one machine
// checksums are partial and superpackets whole (CHECKSUM_PARTIAL and GSO survive
// veth), and only of UDP superpackets does a socket tell so, by gsoSize. It is
// false for a superpacket that nobody can split, or whose checksum is wrong.
func (w *receiveWorker) offloads(mtu int, gsoSize uint16) bool {
	p, b, ip := &w.packet, w.packet.ip(), &w.ip
	partial := encap.IsPartial(b, ip)
	if gsoSize == 0 {
		if ip.Len <= mtu || ip.Proto != encap.ProtoTCP || ip.Fragment {
			return w.checksum(partial, min(mtu, guessedMTU))
		}
		if gsoSize = guessGSOSize(b, ip, mtu); gsoSize == 0 {
			return false
		}
	}
	if !partial && !encap.VerifyChecksum(b, ip) {
		return false // splitting would make it right
	}
	var ok bool
	p.Offload, ok = encap.SuperOffload(b, ip, gsoSize)
	return ok
}

// checksum says what the checksum of a packet that fits the device leaves to be
// done. If it is partial the packet is from this machine, and may be a superpacket
// of two small segments, of which neither may be longer than maxLen.
func (w *receiveWorker) checksum(partial bool, maxLen int) bool {
	if !partial {
		return true
	}
	p, ok := &w.packet, false
	if p.Offload, ok = encap.PartialOffload(p.ip(), &w.ip); !ok {
		// Bytes behind the datagram, which no offload would leave out.
		encap.CompleteChecksum(p.ip(), &w.ip)
		return w.ip.Proto != encap.ProtoTCP || w.ip.Len <= maxLen
	}
	if w.ip.Proto == encap.ProtoTCP && w.ip.Len > maxLen {
		p.maxLen = uint16(maxLen)
		return maxLen > int(p.HdrLen)
	}
	return true
}

// guessGSOSize returns the payload of each segment of the TCP superpacket b, so
// that none is above what its destination can take, or 0 where b cannot be one.
func guessGSOSize(b []byte, ip *encap.IP, mtu int) uint16 {
	if ip.Len < ip.HeaderLen+tcpMinLen {
		return 0
	}
	tcpLen := int(b[ip.HeaderLen+12]>>4) * 4
	return uint16(max(0, min(mtu, guessedMTU)-ip.HeaderLen-tcpLen))
}

const (
	tcpMinLen   = 20 // of a TCP header
	tcpChecksum = 16 // offset in it of its checksum
)
