package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// rawSocket returns a function that sends IPv4 packets from a namespace as they are.
func rawSocket(t *testing.T, ns *netnstest.NS) (send func(packet []byte)) {
	t.Helper()
	var fd int
	ns.Must(func() (err error) { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW); return err })
	t.Cleanup(func() { unix.Close(fd) })
	return func(packet []byte) {
		_ = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}) // the sender's own guard may refuse it
	}
}

// datagramPacket is an IPv4 packet with a UDP datagram.
func datagramPacket(from netip.Addr, to netip.AddrPort, payload []byte) []byte {
	const headers = 20 + 8
	b := make([]byte, headers, headers+len(payload))
	copy(b, []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP})
	binary.BigEndian.PutUint16(b[2:], uint16(headers+len(payload)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], 9)
	binary.BigEndian.PutUint16(b[22:], to.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload))) // no checksum: RFC 768
	return append(b, payload...)
}

// checksum is that of an IPv4 header, whose length is even.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum&0xffff + sum>>16)
}

// inbox has the texts that have arrived at textPort, and where.
type inbox struct {
	mu  sync.Mutex
	got map[string]string
}

const textPort = 9999

// textPacket is an IPv4 packet with a text for an inbox.
func textPacket(from, to netip.Addr, text string) []byte {
	return datagramPacket(from, netip.AddrPortFrom(to, textPort), []byte(text))
}

// vxlanPacket is an IPv4 packet with a datagram of VXLAN for a VTEP.
func vxlanPacket(from netip.Addr, vtep netip.AddrPort, vni uint32, inner []byte) []byte {
	return datagramPacket(from, vtep, append(vxlanFrame(dataplane.MAC(from, vni), dataplane.MAC(vtep.Addr(), vni), vni), inner...))
}

// openInbox listens in namespaces, by the names of the places, until the test ends.
func openInbox(t *testing.T, places map[string]*netnstest.NS) *inbox {
	t.Helper()
	i := &inbox{got: map[string]string{}}
	for place, ns := range places {
		var conn net.PacketConn
		ns.Must(func() (err error) { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: textPort}); return err })
		t.Cleanup(func() { conn.Close() })
		go i.read(conn, place)
	}
	return i
}

func (i *inbox) read(conn net.PacketConn, place string) {
	buf := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		i.mu.Lock()
		i.got[string(buf[:n])] = place
		i.mu.Unlock()
	}
}

// take empties the inbox.
func (i *inbox) take() map[string]string {
	i.mu.Lock()
	defer i.mu.Unlock()
	got := i.got
	i.got = map[string]string{}
	return got
}

// has reports whether a text has arrived since the inbox was emptied.
func (i *inbox) has(text string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.got[text]
	return ok
}
