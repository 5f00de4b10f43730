package userspace

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// refusing is a device that takes no superpackets of some kind.
type refusing struct {
	no      encap.GSO
	written [][]byte
}

func (r *refusing) writeParts(h *[vnetLen]byte, parts [][]byte) (ok, refused bool) {
	if encap.GSO(h[1]) == r.no && r.no != encap.GSONone {
		return false, true
	}
	r.written = append(r.written, bytes.Join(parts, nil))
	return true, false
}

func (r *refusing) Write(b []byte) (int, error) { return len(b), nil }

// TestRefusedSuperpacketIsSplit has devices of kernels without USO, or without TSO.
func TestRefusedSuperpacketIsSplit(t *testing.T) {
	for name, test := range map[string]struct {
		no      encap.GSO
		packets [][]byte
	}{
		"UDP": {encap.GSOUDP, [][]byte{udpPacket(podA, podB, 1, 2, make([]byte, 500)), udpPacket(podA, podB, 1, 2, make([]byte, 500))}},
		"TCP": {encap.GSOTCPv4, [][]byte{tcpPacket(podA, podB, 1, make([]byte, 500)), tcpPacket(podA, podB, 501, make([]byte, 500))}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range test.packets {
				mergeable(test.packets[i])
			}
			dev := &refusing{no: test.no}
			w := newVnetWriter(dev, true, true)
			var c carrier.Counters
			for range 2 {
				dev.written = nil
				for _, b := range test.packets {
					p := bufOf(b)
					var ip encap.IP
					if err := encap.ParseIP(b, &ip); err != nil {
						t.Fatal(err)
					}
					w.Write(&p, &ip, &c)
				}
				w.Flush(&c)
				if len(dev.written) != 2 || !sound(dev.written[0]) || !sound(dev.written[1]) {
					t.Errorf("wrote %x", dev.written)
				}
			}
			c.Publish()
			var s dataplane.Stats
			c.AddTo(&s.RxPackets, &s.RxBytes, &s)
			if s.RxPackets != 4 || s.Offload.Fallbacks != 1 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// mergeable sets DF, without which IDs must count up, and clears PSH, which ends a
// superpacket.
func mergeable(b []byte) {
	b[6] |= 0x40
	binary.BigEndian.PutUint16(b[10:], 0)
	binary.BigEndian.PutUint16(b[10:], ^slowSum(b[:20]))
	if b[9] == 6 {
		b[33] &^= 8
		binary.BigEndian.PutUint16(b[36:], 0)
		binary.BigEndian.PutUint16(b[36:], ^slowSum(pseudoHeader(b), b[20:]))
	}
}
