package probe

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// cookie is what an answer has to repeat. Nobody who has not seen the request can do that.
type cookie [8]byte

// The lengths of headers, in bytes.
const (
	icmpHeader = 8 // RFC 792 page 14, RFC 4443 section 4.1
	ipv6Header = 40
)

// request is an echo request.
type request struct {
	from, to netip.Addr // from: an address of this host; not valid: the kernel chooses
	seq      uint16
	cookie   cookie
	size     int // of the IP packet, in bytes
	ttl      int // 0: the usual
}

// smallSize is the size of a small request, in bytes: that of ping(8).
func smallSize(to netip.Addr) int { return headers(to) + 56 }

// headers returns the length of IP and ICMP header, in bytes.
func headers(to netip.Addr) int {
	if to.Is4() {
		return ipv4.HeaderLen + icmpHeader
	}
	return ipv6Header + icmpHeader
}

// marshal returns the ICMP message. The kernel fills in the checksum of an ICMPv6 message.
func (r *request) marshal(id uint16) ([]byte, error) {
	data := make([]byte, max(r.size-headers(r.to), len(r.cookie)))
	copy(data, r.cookie[:])
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(id), Seq: int(r.seq), Data: data}}
	if r.to.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	return m.Marshal(nil)
}

// sumOf returns the checksum of an ICMP message.
func sumOf(b []byte) uint16 { return binary.BigEndian.Uint16(b[2:]) }

// outcome is what an answer says.
type outcome uint8

const (
	junk        outcome = iota // nothing
	reply                      // echo reply
	expired                    // the TTL was used up
	unreachable                // there is no such network or host
	tooBig                     // the packet is too large for the path
)

// answer is what came back.
type answer struct {
	outcome outcome
	from    netip.Addr // of who sent it
	to      netip.Addr // of an error: where the request went
	seq     uint16
	sum     uint16 // of an error: the checksum of the request
	size    int    // of a reply: of the ICMP message, in bytes
	mtu     int    // of tooBig: what the path takes, in bytes
	data    []byte // behind the ICMP header of the reply, or of the request that is quoted: at most as long as a cookie
}

// readEcho reads the header of an echo request or reply of that ICMP type into a.
func (a *answer) readEcho(b []byte, icmpType byte, id uint16) bool {
	if len(b) < icmpHeader || b[0] != icmpType || b[1] != 0 || binary.BigEndian.Uint16(b[4:]) != id {
		return false
	}
	a.sum, a.seq = sumOf(b), binary.BigEndian.Uint16(b[6:])
	a.data = b[icmpHeader:min(len(b), icmpHeader+len(cookie{}))]
	return true
}

// echoTypes returns the ICMP types of request and reply.
func echoTypes(v6 bool) (request, reply byte) {
	if v6 {
		return byte(ipv6.ICMPTypeEchoRequest), byte(ipv6.ICMPTypeEchoReply)
	}
	return byte(ipv4.ICMPTypeEcho), byte(ipv4.ICMPTypeEchoReply)
}

// outcomeOf returns what an ICMP error says.
func outcomeOf(v6 bool, icmpType, code byte) outcome {
	const netUnreachable, hostUnreachable, fragmentationNeeded = 0, 1, 4 // RFC 792 page 4
	const noRoute, addressUnreachable = 0, 3                             // RFC 4443 section 3.1
	switch {
	case !v6 && icmpType == byte(ipv4.ICMPTypeTimeExceeded), v6 && icmpType == byte(ipv6.ICMPTypeTimeExceeded):
		return expired
	case !v6 && icmpType == byte(ipv4.ICMPTypeDestinationUnreachable) && code == fragmentationNeeded, v6 && icmpType == byte(ipv6.ICMPTypePacketTooBig):
		return tooBig
	case !v6 && icmpType == byte(ipv4.ICMPTypeDestinationUnreachable) && (code == netUnreachable || code == hostUnreachable),
		v6 && icmpType == byte(ipv6.ICMPTypeDestinationUnreachable) && (code == noRoute || code == addressUnreachable):
		return unreachable
	}
	return junk
}
