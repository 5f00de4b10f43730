package carrier

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// TestTunnelSendsOddSuperpackets has a link without offloads: what leaves by the uplink is what leaves by the sockets, and all of its checksums are complete.
func TestTunnelSendsOddSuperpackets(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ethtool"); err != nil {
		netnstest.Lacks(t, "ethtool")
	}
	pods6 := [2]netip.Addr{netip.MustParseAddr("fd42::1"), netip.MustParseAddr("fd42::2")}
	data := bytes.Repeat([]byte("0123456789abcde"), 4400)
	tcp4, udp4 := packettest.TCP(podA, podB, 7, data[:5000]), packettest.UDP(podA, podB, 1, 2, data[:5000])
	tcp6, udp6 := packettest.TCP(pods6[0], pods6[1], 1<<32-5, data[:5000]), packettest.UDP(pods6[0], pods6[1], 1, 2, data[:5000])
	const hopByHop, destination = 0, 60
	cases := []struct {
		name   string
		packet []byte
		size   uint16
		behind int // bytes behind the packet
	}{
		{"one segment, TCP", packettest.TCP(podA, podB, 7, data[:1000]), 1000, 0},
		{"one short segment, TCP over IPv6", packettest.TCP(pods6[0], pods6[1], 7, data[:1]), 1000, 0},
		{"one segment, UDP", packettest.UDP(podA, podB, 1, 2, data[:1000]), 1000, 0},
		{"one short segment, UDP over IPv6", packettest.UDP(pods6[0], pods6[1], 1, 2, data[:999]), 1000, 0},
		{"one byte more than a segment", packettest.TCP(podA, podB, 7, data[:1001]), 1000, 0},
		{"segments of a byte", packettest.UDP(podA, podB, 1, 2, data[:100]), 1, 0},
		{"IPv4 options, TCP", packettest.WithHeader(tcp4, 0, 5), 1200, 0},
		{"IPv4 options, UDP", packettest.WithHeader(udp4, 0, 1), 1200, 0},
		{"extension headers, TCP", packettest.WithHeader(packettest.WithHeader(tcp6, destination, 1), hopByHop, 1), 1200, 0},
		{"extension headers, UDP", packettest.WithHeader(packettest.WithHeader(udp6, destination, 1), hopByHop, 1), 1200, 0},
		{"TCP options, urgent", withTCP(tcp4, 40, 0x38, 77), 1200, 0},
		{"TCP, all flags", withTCP(tcp6, 12, 0xff, 1), 1200, 0},
		{"bytes behind it, TCP", tcp4, 1200, 100},
		{"bytes behind it, UDP over IPv6", udp6, 1200, 100},
		{"as large as it gets", packettest.TCP(podA, podB, 7, data[:65535-40-50]), 1200, 0},
		{"too large to be encapsulated", packettest.TCP(podA, podB, 7, data[:65535-40]), 1200, 0},
	}
	for family := range tunnelAddrs {
		t.Run(family, func(t *testing.T) {
			h := newTunnelHosts(t, family, nil).ready()
			h.a.Run("ethtool", "-K", "eth0", "tx", "off", "sg", "off")
			next := h.listen("eth0")
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					send := func() [][]byte {
						before := h.stats().Offload.TxSegments
						p := superOf(t, bytes.Clone(c.packet), c.size)
						p.Buf = append(p.Buf, make([]byte, c.behind)...)
						h.send(p)
						return takeSound(t, next, int(h.stats().Offload.TxSegments-before))
					}
					got := send()
					way := h.entries[0].Peer.way.Swap(nil)
					want := send()
					h.entries[0].Peer.way.Store(way)
					if !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
						t.Errorf("got  %s\nwant %s", heads(got), heads(want))
					}
				})
			}
		})
	}
}

// takeSound takes n packets whose checksums have to be complete, outside and inside. What may differ between two sendings is taken out.
func takeSound(t *testing.T, next func(time.Duration) []byte, n int) (all [][]byte) {
	t.Helper()
	for range n {
		b := next(patience)
		if b == nil {
			t.Errorf("%d of %d packets arrived", len(all), n)
			return all
		}
		at := packettest.HeaderLen(b)
		if !packettest.Sound(b) {
			t.Errorf("a wrong outer checksum: %x", b[:at+8])
		}
		var ip encap.IP
		inner := b[at+8+encap.HeaderLen:]
		if encap.ParseIP(inner, &ip) != nil || ip.Len != len(inner) || !encap.VerifyChecksum(inner, &ip) {
			t.Errorf("a wrong packet in it: %x", inner[:min(len(inner), 100)])
		}
		if b[0]>>4 == 4 {
			copy(b[4:6], []byte{0, 0}) // identification
			copy(b[10:12], []byte{0, 0})
		}
		all = append(all, b)
	}
	return all
}

// withTCP returns a packet with n bytes of TCP options, a reserved bit, and these flags and urgent pointer. Its checksum is wrong.
func withTCP(p []byte, n int, flags byte, urgent uint16) []byte {
	at := packettest.HeaderLen(p)
	q := append(append(bytes.Clone(p[:at+20]), bytes.Repeat([]byte{1}, n)...), p[at+20:]...)
	q[at+12], q[at+13] = byte(20+n)/4<<4|1, flags
	binary.BigEndian.PutUint16(q[at+18:], urgent)
	return packettest.SetLength(q)
}
