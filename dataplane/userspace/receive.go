package userspace

import (
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// lane carries the packets of one network from a receiveWorker, on its goroutine,
// to the network's device.
type lane struct {
	counters
	table  *atomic.Pointer[table]
	writer writer
	local  local // the VTEP that the worker's socket is of
	packet packet
	ip     encap.IP
	queued bool // since the last flush
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
	t := l.table.Load()
	if why, ok := l.accept(t, d); !ok {
		l.drop(why)
		return
	}
	// The datagram's VXLAN and Ethernet headers become the packet's headroom, and
	// Ethernet padding behind the packet is cut off.
	l.packet = packet{buf: d.buf[:headroom+l.ip.Len]}
	if !encap.DecapECN(l.packet.ip(), d.ecn) {
		l.drop(dataplane.DropCongestion)
		return
	}
	if why, ok := l.offloads(t.mtu, d.gsoSize); !ok {
		l.drop(why)
		return
	}
	l.writer.Write(&l.packet, &l.ip, &l.counters)
}

// accept decides whether the datagram is from a known VTEP, for this one, and
// carries what that VTEP may send; if not, why. It leaves the inner header in l.ip.
func (l *lane) accept(t *table, d *datagram) (why dataplane.Drop, ok bool) {
	vtep := t.vteps.Lookup(d.from)
	if vtep == nil {
		return dataplane.DropUnknownVTEP, false
	}
	dst, src, etherType, err := encap.ParseEthernet(d.buf[encap.VXLANLen:])
	if err != nil {
		return dataplane.DropBadHeader, false
	}
	if dst != l.local.mac && !isBroadcast(dst) || src == l.local.mac {
		return dataplane.DropBadMAC, false
	}
	if encap.ParseIP(d.buf[headroom:], &l.ip) != nil || etherType != etherTypeOf(l.ip.Version) {
		return dataplane.DropBadHeader, false
	}
	// Peers are compared and not entries: a VTEP has an entry for each of its leases.
	if from := t.routes.Lookup(l.ip.Src); from == nil || from.peer != vtep.peer {
		return dataplane.DropBadSource, false
	}
	if !t.isOwn(l.ip.Dst) {
		return dataplane.DropBadDestination, false
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

// guessedMTU is the largest packet that every destination behind this host is
// taken to accept: the least MTU of IPv6. A superpacket does not tell its
// segments' size; smaller than sent is harmless, but a pod whose own MTU is
// exceeded never gets the segment, however often TCP sends it again.
const guessedMTU = 1280

// offloads finds out what l.packet leaves to be done. Between hosts of one machine
// checksums are partial and superpackets whole (CHECKSUM_PARTIAL and GSO survive
// veth), and only of UDP superpackets does a socket tell so, by gsoSize. It is
// not ok for a superpacket that nobody can split, or whose checksum is wrong.
func (l *lane) offloads(mtu int, gsoSize uint16) (why dataplane.Drop, ok bool) {
	p, b, ip := &l.packet, l.packet.ip(), &l.ip
	partial := encap.IsPartial(b, ip)
	if gsoSize == 0 {
		if ip.Len <= mtu || ip.Proto != encap.ProtoTCP || ip.Fragment {
			return dataplane.DropBadHeader, l.checksum(partial, min(mtu, guessedMTU))
		}
		if gsoSize = guessGSOSize(b, ip, mtu); gsoSize == 0 {
			return dataplane.DropBadHeader, false
		}
	}
	if !partial && !encap.VerifyChecksum(b, ip) {
		return dataplane.DropBadChecksum, false // splitting would make it right
	}
	p.Offload, ok = encap.SuperOffload(b, ip, gsoSize)
	return dataplane.DropBadHeader, ok
}

// checksum says what the checksum of a packet that fits the device leaves to be
// done. If it is partial the packet is from this machine, and may be a superpacket
// of two small segments, of which neither may be longer than maxLen.
func (l *lane) checksum(partial bool, maxLen int) bool {
	if !partial {
		return true
	}
	p, ok := &l.packet, false
	if p.Offload, ok = encap.PartialOffload(p.ip(), &l.ip); !ok {
		// Bytes behind the datagram, which no offload would leave out.
		encap.CompleteChecksum(p.ip(), &l.ip)
		return l.ip.Proto != encap.ProtoTCP || l.ip.Len <= maxLen
	}
	if l.ip.Proto == encap.ProtoTCP && l.ip.Len > maxLen {
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
