package main

import (
	"encoding/binary"

	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/encap"
)

// etherTypeOther is the EtherType for local experiments (IEEE 802): a datagram that is too short to have a frame in it
// stands behind it.
const etherTypeOther = 0x88b5

// framer makes an Ethernet frame of every packet: readers of pcapng want one link type, and Ethernet is what VXLAN carries.
type framer struct{ buf []byte }

// frame returns the frame of a packet, as far as it was captured, and its whole length. It is borrowed until the next one.
func (f *framer) frame(p *stream.Packet) (b []byte, length int) {
	if p.Form != capture.IP && p.Length >= encap.HeaderLen {
		return p.Data[min(encap.VXLANLen, len(p.Data)):], max(p.Length-encap.VXLANLen, 0)
	}
	etherType := uint16(etherTypeOther)
	if p.Form == capture.IP && len(p.Data) > 0 {
		switch p.Data[0] >> 4 {
		case 4:
			etherType = encap.EtherTypeIPv4
		case 6:
			etherType = encap.EtherTypeIPv6
		}
	}
	f.buf = append(f.buf[:0], make([]byte, encap.EthernetLen)...)
	binary.BigEndian.PutUint16(f.buf[encap.EthernetLen-2:], etherType)
	f.buf = append(f.buf, p.Data...)
	return f.buf, encap.EthernetLen + p.Length
}
