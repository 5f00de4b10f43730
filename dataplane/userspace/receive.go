package userspace

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// receiveWorker carries packets from the underlay to one queue, on one goroutine.
type receiveWorker struct {
	counters
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
	idle := w.publish
	defer w.publish()
	for {
		if err := w.receiver.Receive(&w.datagram, idle); err == nil {
			w.receive(&w.datagram)
		} else if ctx.Err() != nil {
			return nil
		} else if err := onError(ctx, err); err != nil {
			return err
		}
	}
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
	if !w.offloads(t.mtu) {
		w.drop(dataplane.DropMalformed)
		return
	}
	w.queue.Write(&w.packet, &w.counters)
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
// checksums are partial and TCP superpackets whole, without a sign of it
// (CHECKSUM_PARTIAL and GSO survive veth, but not a UDP socket). It is false for a
// superpacket that nobody can split, or whose checksum is wrong.
func (w *receiveWorker) offloads(mtu int) bool {
	p, b, ip := &w.packet, w.packet.ip(), &w.ip
	if encap.IsPartial(b, ip) {
		p.partial, p.csumStart, p.csumOffset = true, uint16(ip.HeaderLen), tcpChecksum
		if ip.Proto == encap.ProtoUDP {
			p.csumOffset = udpChecksum
			if udpLen := binary.BigEndian.Uint16(b[ip.HeaderLen+4:]); int(udpLen) != ip.Len-ip.HeaderLen {
				// Bytes behind the datagram, which no offload would leave out.
				encap.CompleteChecksum(b, ip)
				p.partial, p.csumStart, p.csumOffset = false, 0, 0
			}
		}
	}
	fits := mtu
	if p.partial { // from this machine: it may be a superpacket of two small segments
		fits = min(mtu, guessedMTU)
	}
	if ip.Len <= fits || ip.Proto != encap.ProtoTCP || ip.Fragment {
		return true
	}
	if !p.partial && !encap.VerifyChecksum(b, ip) {
		return false // splitting would make it right
	}
	tcpLen := int(b[ip.HeaderLen+12]>>4) * 4
	size := min(mtu, guessedMTU) - ip.HeaderLen - tcpLen
	if tcpLen < tcpMinLen || ip.HeaderLen+tcpLen > ip.Len || size <= 0 {
		return false
	}
	p.gso, p.gsoSize = gsoTCP, uint16(size)
	p.csumStart, p.csumOffset = uint16(ip.HeaderLen), tcpChecksum
	return true
}

const (
	tcpMinLen   = 20 // of a TCP header
	tcpChecksum = 16 // offset of its checksum field
	udpChecksum = 6  // the same for UDP
)
