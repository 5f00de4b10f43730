package guard

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
)

// TestDisguisedProtocol: a pod has the checksum, which is written behind all hooks, replace the protocol of its packet, which is not UDP before. Over IPv4 the pod
// sends fragments. The host joins them and splits them again, and so writes a new checksum of the IP header.
func TestDisguisedProtocol(t *testing.T) {
	const before, hops, start = 238, 254, 14 + 6 // nobody has the protocol; the checksum starts at the least offset that a packet socket may give
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		b.Run("ethtool", "-K", "eth0", "tx-checksum-ip-generic", "off") // the kernel writes it, as a NIC does
		command := []string{"ip", "ip6"}[family6(w.v6)]
		b.Run("nft", "add table "+command+" masq; add chain "+command+" masq post { type nat hook postrouting priority 100; }; add rule "+command+" masq post oifname eth0 masquerade")
		w.expect("a pod", b, dataplane.DropEgress, func(text []byte) {
			frame := a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
			header := func(at uint16) []byte {
				return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16([]byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0}, start), at)
			}
			if w.v6 {
				p := packet(b.addr, a.addr, 30000, testPort, frame) // with the checksum of UDP that it will have
				p[6], p[7] = before, hops
				if is := ^onesSum(p[6:], 0) >> 8; is != unix.IPPROTO_UDP {
					t.Fatalf("the protocol will be %d", is)
				}
				src := b.podAddr(true).As16()
				copy(p[8:], src[:])
				p[7]++ // the host takes one off
				b.sendFrame(header(0), p)
				return
			}
			p := packet(b.addr, a.addr, 30000, testPort, append(frame, make([]byte, 3000+len(frame)%2)...))
			binary.BigEndian.PutUint16(p[26:], 0) // UDP over IPv4 needs no checksum
			p[9] = before
			binary.BigEndian.PutUint16(p[10:], 0)
			binary.BigEndian.PutUint16(p[10:], ^onesSum(p[:20], 0))
			want := ^uint16(63<<8 | unix.IPPROTO_UDP)
			seed := uint32(want) + 0xffff - uint32(onesSum(p[6:], 0))
			binary.BigEndian.PutUint16(p[len(p)-2:], uint16(seed>>16+seed&0xffff)) // behind the inner packet
			src := b.podAddr(false).As4()
			copy(p[12:], src[:])
			for at := 0; at < len(p)-20; at += 1200 {
				f := append(append([]byte{}, p[:20]...), p[20+at:min(len(p), 20+at+1200)]...)
				offset := uint16(at / 8)
				if 20+at+1200 < len(p) {
					offset |= 0x2000
				}
				binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
				binary.BigEndian.PutUint16(f[6:], offset)
				binary.BigEndian.PutUint16(f[10:], 0)
				binary.BigEndian.PutUint16(f[10:], ^onesSum(f[:20], 0))
				b.sendFrame(header(2), f)
			}
		})
		w.check(100)
	})
}

// TestDisguisedDestination: a pod has the checksum replace a part of the destination of its packet, which goes to a router before. The host masquerades it, as that of
// a container, or it has that host's source from the start.
func TestDisguisedDestination(t *testing.T) {
	container := netip.MustParseAddr("fd99::5")
	t.Run("by the device", func(t *testing.T) {
		w := newWorld(t, true)
		w.disguiseDestination(map[string]netip.Addr{"a container": container, "its host": w.hosts[1].addr})
	})
	t.Run("by the mark", func(t *testing.T) {
		w := newWorld(t, true)
		w.config = func(c *Config) { c.noIncoming = true }
		w.disguiseDestination(map[string]netip.Addr{"its host": w.hosts[1].addr})
	})
}

func (w *world) disguiseDestination(sources map[string]netip.Addr) {
	const next, hops, start, replaced = unix.IPPROTO_UDP, 64, 14 + 6, 24 + 2 // of the IP header
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	b.Run("ethtool", "-K", "eth0", "tx-checksum-ip-generic", "off")
	b.Run("nft", "add table ip6 masq; add chain ip6 masq post { type nat hook postrouting priority 100; }; add rule ip6 masq post oifname eth0 masquerade")
	b.Run("ip", "route", "replace", "default", "via", w.strange.String())
	w.stranger.Run("sysctl", "-wq", "net.ipv6.conf.all.forwarding=1")
	add := func(x, y uint16) uint16 { return uint16((uint32(x) + uint32(y)) % 0xffff) }
	for name, src := range sources {
		w.expect("a pod as "+name, b, dataplane.DropEgress, func(text []byte) {
			p := packet(b.addr, a.addr, 30000, testPort, a.frame(1, packet(b.podAddr(true), a.podAddr(true), 1, receivePort, text)))
			from, to := src.As16(), b.addr.As16()
			copy(p[8:], from[:])
			check := p[40+6:] // the host takes one address for the other in it
			binary.BigEndian.PutUint16(check, add(binary.BigEndian.Uint16(check), add(^onesSum(to[:], 0), onesSum(from[:], 0))))
			// The checksum of UDP is right, and so the one from the next header on is what the destination lacks.
			binary.BigEndian.PutUint16(p[replaced:], add(uint16(len(p)-40+next), ^uint16(next<<8|hops-1)))
			header := binary.NativeEndian.AppendUint16([]byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0}, start)
			b.sendFrame(binary.NativeEndian.AppendUint16(header, 14+replaced-start), p)
		})
	}
	w.check(100)
}
