package userspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// TestRefusedRunIsReplayed has the kernel refuse UDP_SEGMENT as older ones, and
// paths with a small MTU, do.
func TestRefusedRunIsReplayed(t *testing.T) {
	segmented := func(m *mmsghdr) int { return min(int(m.hdr.Iovlen), 1+int(m.hdr.Controllen)) }
	for name, test := range map[string]struct {
		refuse func(m *mmsghdr) unix.Errno
		limit  int32 // afterwards
		falls  uint64
	}{
		"nothing": {func(*mmsghdr) unix.Errno { return 0 }, 128, 0},
		"no checksum offload": {func(m *mmsghdr) unix.Errno {
			if segmented(m) > 1 {
				return unix.EIO
			}
			return 0
		}, 1, 1},
		"more than 64": {func(m *mmsghdr) unix.Errno {
			if m.hdr.Controllen > 0 && m.hdr.Iovlen > 64 {
				return unix.EINVAL
			}
			return 0
		}, 64, 1},
		"unknown": {func(m *mmsghdr) unix.Errno {
			if m.hdr.Controllen > 0 {
				return unix.EINVAL
			}
			return 0
		}, 1, 3}, // the second burst is 64 and 36, and both have been made by then
		"segments above the path's MTU": {func(m *mmsghdr) unix.Errno {
			if m.hdr.Controllen > 0 {
				return unix.EMSGSIZE
			}
			return 0
		}, 128, 2},
	} {
		t.Run(name, func(t *testing.T) { replay(t, test.refuse, test.limit, test.falls) })
	}
}

// replay sends two bursts by a sender whose system call is refused now and then,
// and wants every datagram to arrive, in order.
func replay(t *testing.T, refuse func(*mmsghdr) unix.Errno, limit int32, falls uint64) {
	addr := netip.MustParseAddr("127.0.0.1")
	snd, rcv := openSockets(t, netnstest.New(t), addr)
	u := snd.transmitter.(*udpSender)
	u.sendmmsg = func(fd int, msgs []mmsghdr) (int, unix.Errno) {
		for i := range msgs {
			if errno := refuse(&msgs[i]); errno != 0 && i == 0 {
				return 0, errno
			} else if errno != 0 {
				return sendmmsg(fd, msgs[:i])
			}
		}
		return sendmmsg(fd, msgs)
	}
	e := entryTo(netip.AddrPortFrom(addr, testPort))
	var c counters
	var d datagram
	for burst := range 2 {
		var want [][]byte
		for i := range 100 {
			p := bufOf(udpPacket(podA, podB, 1, 2, fmt.Appendf(nil, "burst %d packet %3d", burst, i)))
			want = append(want, bytes.Clone(p.ip()))
			snd.Send(&p, e, false, &c)
		}
		snd.Flush(&c)
		for i := range want {
			if err := rcv.Receive(&d, c.publish); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.buf[headroom:], want[i]) {
				t.Fatalf("burst %d: datagram %d is %q", burst, i, d.buf[headroom:])
			}
		}
	}
	c.publish()
	var s dataplane.Stats
	c.addTo(&s.TxPackets, &s.TxBytes, &s)
	if s.TxPackets != 200 || s.Drops != [dataplane.NumDrops]uint64{} || u.ports.segments.Load() != limit {
		t.Errorf("counted %+v, %d segments from now on", s, u.ports.segments.Load())
	}
	if s.Offload.Fallbacks != falls {
		t.Errorf("%d fallbacks, want %d", s.Offload.Fallbacks, falls)
	}
}

// TestECNCrossesSockets sends packets with each ECN field, in one batch.
func TestECNCrossesSockets(t *testing.T) {
	for _, s := range []string{"127.0.0.1", "::1"} {
		addr := netip.MustParseAddr(s)
		snd, rcv := openSockets(t, netnstest.New(t), addr)
		e := entryTo(netip.AddrPortFrom(addr, testPort))
		var c counters
		var packets [8]packet
		for i := range packets {
			packets[i] = blank(100)
			packets[i].ip()[1] = 0xb8 | byte(i%4) // DSCP stays inside
			snd.Send(&packets[i], e, false, &c)
		}
		snd.Flush(&c)
		var d datagram
		for range packets {
			if err := rcv.Receive(&d, c.publish); err != nil {
				t.Fatal(err)
			}
			if want := encap.PacketECN(d.buf[headroom:]); d.ecn != want {
				t.Errorf("%s: outer ECN %d, inner %d", s, d.ecn, want)
			}
		}
	}
}

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
			var c counters
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
			c.publish()
			var s dataplane.Stats
			c.addTo(&s.RxPackets, &s.RxBytes, &s)
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
