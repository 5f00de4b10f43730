package carrier

import (
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// guessedMTU is the largest packet that every destination behind this host is
// taken to accept: the least MTU of IPv6. A superpacket does not tell its
// segments' size; smaller than sent is harmless, but a pod whose own MTU is
// exceeded never gets the segment, however often TCP sends it again.
const guessedMTU = 1280

// tcpMinLen is the length of a TCP header without options, in bytes.
const tcpMinLen = 20

// socketGuesser is the guesser of a socket. Between hosts on one machine checksums stay partial
// and superpackets whole (CHECKSUM_PARTIAL and GSO survive veth). A socket reports this only for UDP
// superpackets, by Offload.Size.
type socketGuesser struct{}

// Guess implements Guesser. It returns false for a superpacket that cannot be split, or whose
// checksum is wrong.
func (socketGuesser) Guess(p *Packet, ip *encap.IP, mtu int) (why dataplane.Drop, ok bool) {
	b := p.IP()
	partial := encap.IsPartial(b, ip)
	size := p.Size
	if size == 0 {
		if ip.Len <= mtu || ip.Proto != encap.ProtoTCP || ip.Fragment {
			return dataplane.DropBadHeader, !partial || guessPartial(p, ip, min(mtu, guessedMTU))
		}
		if size = guessSize(b, ip, mtu); size == 0 {
			return dataplane.DropBadHeader, false
		}
	}
	if !partial && !encap.VerifyChecksum(b, ip) {
		return dataplane.DropBadChecksum, false // splitting would make it right
	}
	p.Offload, ok = encap.SuperOffload(b, ip, size)
	return dataplane.DropBadHeader, ok
}

// guessPartial finds out which offloads a packet with a partial checksum that fits the device still needs.
// The packet is from this machine. It may be a superpacket of two small segments; neither
// may be longer than maxLen.
func guessPartial(p *Packet, ip *encap.IP, maxLen int) (ok bool) {
	b := p.IP()
	if p.Offload, ok = encap.PartialOffload(b, ip); !ok {
		// Bytes behind the datagram, which no offload would leave out.
		encap.CompleteChecksum(b, ip)
		return ip.Proto != encap.ProtoTCP || ip.Len <= maxLen
	}
	if ip.Proto == encap.ProtoTCP && ip.Len > maxLen {
		p.MaxLen = uint16(maxLen)
		return maxLen > int(p.HdrLen)
	}
	return true
}

// guessSize returns the payload of each segment of the TCP superpacket b, so
// that none is above what its destination can take, or 0 if b cannot be one.
func guessSize(b []byte, ip *encap.IP, mtu int) uint16 {
	if ip.Len < ip.HeaderLen+tcpMinLen {
		return 0
	}
	tcpLen := int(b[ip.HeaderLen+12]>>4) * 4
	return uint16(max(0, min(mtu, guessedMTU)-ip.HeaderLen-tcpLen))
}
