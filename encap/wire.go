package encap

import "encoding/binary"

// minMTU6 is the least MTU of IPv6 (RFC 8200 section 5), in bytes.
const minMTU6 = 1280

// WireLen returns the length in bytes of the longest packet that the packet b will be on the
// wire: its own, or that of the first segment of a superpacket.
func (o *Offload) WireLen(b []byte) int {
	if o.GSO == GSONone {
		return len(b)
	}
	headers := int(o.CsumStart)
	switch {
	case o.GSO == GSOUDP:
		headers += udpLen
	case headers+tcpMinLen <= len(b):
		headers += int(b[headers+12]>>4) * 4
	}
	return min(len(b), headers+int(o.Size))
}

// Fragmentable reports whether the IP packet b, too long for the path, is to go there in
// fragments of the underlay: an IPv4 packet without DF may, and an IPv6 packet of up to the
// least MTU must, because its sender will not make it shorter (RFC 2473 section 7.1 (b)). b
// holds at least an IPv4 header.
func (o *Offload) Fragmentable(b []byte) bool {
	if b[0]>>4 == 6 {
		return o.WireLen(b) <= minMTU6
	}
	return binary.BigEndian.Uint16(b[6:])&ipv4DontFragment == 0
}
