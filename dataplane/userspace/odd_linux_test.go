package userspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// crossing is a network of two hosts. Packets that the first sends by its overlay device arrive at the pod of the second one, in segments.
type crossing struct {
	t       *testing.T
	a, b    *testHost
	d, e    *Dataplane // of them; nil if there is a vxlan device instead
	guesses bool       // see TestOddSuperpacketsCross
	in, out [2]int     // packet sockets, of IPv4 and IPv6
}

// peerOf says what the second host of a crossing is like.
type peerOf struct {
	kernel   bool // it has a vxlan device
	offloads Offloads
}

func newCrossing(t *testing.T, offloads Offloads, peer peerOf) *crossing {
	t.Helper()
	if _, err := exec.LookPath("ethtool"); err != nil {
		netnstest.Lacks(t, "ethtool")
	}
	hosts := newDualHosts(t, 2, 4)
	c := &crossing{t: t, a: hosts[0], b: hosts[1]}
	c.a.offloads, c.b.offloads = offloads&^TUNMultiqueue, peer.offloads&^TUNMultiqueue // packets with one QuickHash stay in order
	c.d = c.a.open()
	if peer.kernel {
		c.b.vxlan(true)
	} else {
		c.e = c.b.open()
		c.b.sync(c.e, c.a)
		c.b.run(c.e)
	}
	c.a.sync(c.d, c.b)
	if peer.kernel {
		c.b.vxlanPeer(c.a)
	}
	c.a.run(c.d)
	ping(t, c.a.pod, c.b.podAddr())
	ping(t, c.a.pod, c.b.podAddr6())
	c.b.Run("ethtool", "-K", "veth0", "tso", "off", "gso", "off", "tx", "off")
	pod := &testHost{NS: c.b.pod, tb: t}
	for i := range c.in {
		c.in[i] = c.a.rawSocket(t, "flannel.1", i == 1)
		c.out[i] = pod.rawSocket(t, "eth0", i == 1)
	}
	return c
}

// rawSocket opens a packet socket whose packets have a vnet header.
func (h *testHost) rawSocket(t *testing.T, device string, v6 bool) (fd int) {
	t.Helper()
	at := h.linkAddr(t, device)
	at.Protocol = etherTypeIn(v6)
	h.Must(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(at.Protocol)); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, at), unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// etherTypeIn is the EtherType in network byte order.
func etherTypeIn(v6 bool) uint16 {
	if v6 {
		return 0xdd86
	}
	return 0x0008
}

// ends returns the addresses that packets have.
func (c *crossing) ends(v6 bool) (src, dst netip.Addr) {
	if v6 {
		return c.a.podAddr6(), c.b.podAddr6()
	}
	return c.a.podAddr(), c.b.podAddr()
}

// send sends one packet with what its vnet header says.
func (c *crossing) send(p []byte, o encap.Offload) {
	c.t.Helper()
	v6 := p[0]>>4 == 6
	at := c.a.linkAddr(c.t, "flannel.1")
	at.Protocol = etherTypeIn(v6)
	var h [vnetLen]byte
	encodeVnet(&h, &o)
	if err := unix.Sendto(c.in[index(v6)], append(h[:], p...), 0, at); err != nil {
		c.t.Errorf("%d bytes, %+v: %v", len(p), o, err)
	}
}

func index(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// check takes what arrives, and wants it to be these packets as a router passes them on. Those that go the same way keep their order.
func (c *crossing) check(v6 bool, sent [][]byte) {
	c.t.Helper()
	want, got := map[uint32][]string{}, map[uint32][]string{}
	for _, p := range sent {
		k := encap.QuickHash(p)
		want[k] = append(want[k], alike(routed(p)))
	}
	for i := range sent {
		p := c.arrival(v6)
		if p == nil {
			c.t.Errorf("%d of %d packets arrived: %+v", i, len(sent), c.d.Stats())
			break
		}
		k := encap.QuickHash(p)
		got[k] = append(got[k], alike(p))
	}
	for k := range want {
		for i, w := range want[k] {
			if i >= len(got[k]) || got[k][i] != w {
				g := ""
				if i < len(got[k]) {
					g = got[k][i]
				}
				c.t.Errorf("packet %d of %d\nwant %s\ngot  %s", i, len(want[k]), head(w), head(g))
				break
			}
		}
	}
}

// arrival returns the next packet that the pod gets from the other one, or nil.
func (c *crossing) arrival(v6 bool) []byte {
	src, _ := c.ends(v6)
	buf := make([]byte, vnetLen+14+carrier.MaxPacket)
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); {
		n, from, err := unix.Recvfrom(c.out[index(v6)], buf, 0)
		if err != nil {
			return nil
		}
		p := buf[vnetLen+14 : n]
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && encap.Source(p, etherTypeOf(p[0]>>4)) == src && !isChatter(p) {
			return bytes.Clone(p)
		}
	}
	return nil
}

// isChatter tells neighbour discovery, and pings that newCrossing repeated, from the packets of the tests, whose ICMP is of no such type.
func isChatter(p []byte) bool {
	if p[0]>>4 == 4 {
		return p[9] == unix.IPPROTO_ICMP && p[20] == 8
	}
	return p[6] == unix.IPPROTO_ICMPV6 && p[40] >= 128
}

func head(p string) string { return fmt.Sprintf("%d %x", len(p), p[:min(len(p), 100)]) }

// routed returns a packet as a router passes it on.
func routed(p []byte) []byte {
	p = bytes.Clone(p)
	if p[0]>>4 == 6 {
		p[7]--
		return p
	}
	p[8]--
	return packettest.SetLength(p)
}

// alike takes out the identification of a packet that must not be fragmented, which means nothing (RFC 6864).
func alike(p []byte) string {
	p = bytes.Clone(p)
	if p[0]>>4 == 4 && p[6]&0x40 != 0 && packettest.Sum(p[:packettest.HeaderLen(p)]) == 0xffff {
		copy(p[4:6], []byte{0, 0})
		return string(packettest.SetLength(p))
	}
	return string(p)
}

// withChecksum completes the TCP or UDP checksum of a packet without extension headers.
func withChecksum(p []byte) []byte {
	proto, at := p[6], packettest.HeaderLen(p)
	if p[0]>>4 == 4 {
		proto = p[9]
	}
	field := p[at+16 : at+18]
	if proto == encap.ProtoUDP {
		field = p[at+6 : at+8]
	}
	copy(field, []byte{0, 0})
	sum := ^packettest.Sum(packettest.PseudoHeader(p), p[at:])
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
	return p
}
