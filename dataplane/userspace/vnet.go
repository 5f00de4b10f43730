package userspace

import (
	"encoding/binary"

	"github.com/overlayd/overlayd/encap"
)

// vnetLen is the length of the vnet header, struct virtio_net_hdr in
// linux/virtio_net.h, in bytes and in host byte order:
//
//	 0      1         2        4         6           8            10
//	+------+---------+--------+---------+-----------+------------+
//	|flags | gso_type| hdr_len| gso_size| csum_start| csum_offset|
//	+------+---------+--------+---------+-----------+------------+
const vnetLen = 10

const (
	vnetNeedsChecksum = 1
	// vnetTypeFlags are the bits of gso_type that go along with any type: ECN, ACCECN
	// and the two of UDP tunnels.
	vnetTypeFlags = 0x80 | 0x10 | 0x60
)

// gsoInvalid is of a packet that cannot be what its vnet header says. A Splitter
// refuses it.
const gsoInvalid encap.GSO = 0xff

// decodeVnet reads the vnet header h of the packet b. hdr_len is not looked at: of
// a forwarded packet it may be more than the headers.
func decodeVnet(h, b []byte) (o encap.Offload) {
	_ = h[vnetLen-1]
	o.GSO = encap.GSO(h[1] &^ vnetTypeFlags)
	o.Size = binary.NativeEndian.Uint16(h[4:])
	if h[0]&vnetNeedsChecksum != 0 {
		o.Partial = true
		o.CsumStart = binary.NativeEndian.Uint16(h[6:])
		o.CsumOffset = binary.NativeEndian.Uint16(h[8:])
		if int(o.CsumStart)+int(o.CsumOffset)+2 > len(b) || !isBehindHeaders(int(o.CsumStart), b) {
			o.GSO = gsoInvalid
		}
	} else if o.GSO != encap.GSONone {
		o.GSO = gsoInvalid // the checksum of a superpacket is always partial
	}
	return o
}

// isBehindHeaders reports whether the checksum from start on is of what is behind the IP headers of b. A pod with packet sockets can have another one, which would
// be written over the addresses once they have been judged.
func isBehindHeaders(start int, b []byte) bool {
	const noOptions = 0x45
	if b[0] == noOptions && start >= 20 || start == 40 && (b[6] == encap.ProtoTCP || b[6] == encap.ProtoUDP) && b[0]>>4 == 6 { // almost all
		return true
	}
	var ip encap.IP
	return encap.ParseIP(b, &ip) == nil && start >= ip.HeaderLen
}

// encodeVnet writes the vnet header for o to h.
func encodeVnet(h *[vnetLen]byte, o *encap.Offload) {
	*h = [vnetLen]byte{}
	if !o.Partial {
		return
	}
	h[0] = vnetNeedsChecksum
	h[1] = byte(o.GSO)
	binary.NativeEndian.PutUint16(h[2:], o.HdrLen)
	binary.NativeEndian.PutUint16(h[4:], o.Size)
	binary.NativeEndian.PutUint16(h[6:], o.CsumStart)
	binary.NativeEndian.PutUint16(h[8:], o.CsumOffset)
}
