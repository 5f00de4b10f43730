package userspace

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// forgedForms are how a forged datagram is cut: what a packet filter that looks at the first bytes does not see through.
var forgedForms = []string{"whole", "8+rest", "overlapping", "atomic"}

// TestForgedKinds sends forged VXLAN, over both families and in each form, from a stranger, in the name of a VTEP, by a user of a
// VTEP's host, and from a pod. Nothing of it is delivered. What is left are packets with the address of a VTEP and one of its pods'
// (a user's are stopped by the guard of the host that the user is on).
func TestForgedKinds(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			t.Parallel()
			hosts := newDualHosts(t, 4, family)
			vtep, target, other, stranger := hosts[0], hosts[1], hosts[2], hosts[3]
			d := connect(target, vtep, false)
			do := other.open()
			other.sync(do, target, vtep)
			target.sync(d, vtep, other)
			received := d.Stats().RxPackets
			for _, actor := range []struct {
				name string
				host *testHost
				src  netip.Addr
			}{
				{"a stranger", stranger, stranger.under[0]},
				{"a stranger as a VTEP", stranger, vtep.under[0]},
				{"a user of a VTEP's host", vtep, vtep.under[0]},
			} {
				for _, form := range forgedForms {
					for name, inner := range forgedInners(vtep, target, other) {
						before := d.Stats()
						why := inner.why
						if actor.src == stranger.under[0] {
							why = dataplane.DropUnknownVTEP
						}
						b := forgedDatagram(actor.src, target, inner.packet)
						looks := 0
						eventually(t, fmt.Sprintf("%s, %s, %s is dropped as %s", actor.name, form, name, why), func() bool {
							if looks++; looks%500 == 1 { // the first one to a neighbour that is not known yet may get lost
								actor.host.Must(func() error { return sendForged(actor.src, target.under[0], form, b) })
								if form == "overlapping" { // the kernel may drop it: one that it does not comes behind it
									actor.host.Must(func() error { return sendForged(actor.src, target.under[0], "whole", b) })
								}
							}
							return d.Stats().Drops[why] > before.Drops[why]
						})
					}
				}
			}
			if n := d.Stats().RxPackets; n != received {
				t.Errorf("%d forged packets are delivered", n-received)
			}
			forgedBatch(t, d, vtep, target, other)
			forgedByPod(t, d, vtep, target)
		})
	}
}

// forgedInners are the packets inside, and why a packet of a known VTEP with one is dropped.
func forgedInners(vtep, target, other *testHost) map[string]struct {
	packet []byte
	why    dataplane.Drop
} {
	type inner = struct {
		packet []byte
		why    dataplane.Drop
	}
	udp := func(src, dst netip.Addr) []byte { return udpPacket(src, dst, 1, 2, make([]byte, 60)) }
	v6 := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	own, pod := vtep.podAddr(), target.podAddr()
	return map[string]inner{
		"another pod":        {udp(other.podAddr(), pod), dataplane.DropBadSource},
		"another pod, v6":    {udp(other.podAddr6(), target.podAddr6()), dataplane.DropBadSource},
		"outside":            {udp(v6("203.0.113.1"), pod), dataplane.DropBadSource},
		"this host's pod":    {udp(pod, pod), dataplane.DropBadSource},
		"loopback":           {udp(v6("127.0.0.1"), pod), dataplane.DropBadSource},
		"mapped":             {udp(v6("::ffff:10.42.1.2"), target.podAddr6()), dataplane.DropBadSource},
		"relay":              {udp(own, other.podAddr()), dataplane.DropBadDestination},
		"relay, v6":          {udp(vtep.podAddr6(), other.podAddr6()), dataplane.DropBadDestination},
		"reflection":         {udp(own, own), dataplane.DropBadDestination},
		"to the underlay":    {udp(own, target.addr), dataplane.DropBadDestination},
		"to the underlay v6": {udp(vtep.podAddr6(), v6("2001:db8::3")), dataplane.DropBadDestination},
		"to a broadcast":     {udp(own, v6("10.42.2.255")), dataplane.DropBadDestination},
		"to everybody":       {udp(own, v6("255.255.255.255")), dataplane.DropBadDestination},
		"to a group":         {udp(own, v6("224.0.0.1")), dataplane.DropBadDestination},
		"to a group, v6":     {udp(vtep.podAddr6(), v6("ff02::1")), dataplane.DropBadDestination},
		"to loopback":        {udp(own, v6("127.0.0.1")), dataplane.DropBadDestination},
		"ARP":                {append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 40)...), dataplane.DropBadHeader},
	}
}

// forgedVXLAN returns a packet behind the headers of VXLAN.
func forgedVXLAN(target *testHost, packet []byte) []byte {
	b := make([]byte, encap.HeaderLen)
	t := encap.NewTemplate(testVNI, target.vteps[0].MAC, encap.MAC{2, 9})
	t.Put(b, etherTypeOf(packet[0]>>4))
	return append(b, packet...)
}

// forgedDatagram returns the same as a UDP datagram with its header.
func forgedDatagram(src netip.Addr, target *testHost, packet []byte) []byte {
	p := udpPacket(src, target.under[0], 4789, testPort, forgedVXLAN(target, packet))
	return p[packettest.HeaderLen(p):]
}

// sendForged sends a UDP datagram from an address that need not be the host's.
func sendForged(src, dst netip.Addr, form string, udp []byte) error {
	switch {
	case form == "8+rest":
		return sendRaw(src, dst, fragment(src, dst, udp[:8], 0, true), fragment(src, dst, udp[8:], 8, false))
	case form == "overlapping":
		return sendRaw(src, dst, fragment(src, dst, udp[:24], 0, true), fragment(src, dst, udp[16:], 16, false))
	case form == "atomic" && src.Is6():
		return sendRaw(src, dst, fragment(src, dst, udp, 0, false))
	}
	whole := packettest.IP(src, dst, 253, udp) // which leaves the checksum alone
	whole[map[bool]int{true: 6, false: 9}[src.Is6()]] = 17
	return sendRaw(src, dst, whole) // the kernel completes the header checksum
}

var fragmentID atomic.Uint32 // of the test's subtests together

// fragment returns a fragment of a datagram.
func fragment(src, dst netip.Addr, part []byte, at int, more bool) []byte {
	if at == 0 {
		fragmentID.Add(1)
	}
	if src.Is6() {
		h := []byte{17, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(h[2:], uint16(at))
		if more {
			h[3] |= 1
		}
		binary.BigEndian.PutUint32(h[4:], fragmentID.Load())
		return packettest.IP(src, dst, 44, append(h, part...))
	}
	p := packettest.IP(src, dst, 1, part) // its checksum would be that of UDP
	p[9] = 17
	binary.BigEndian.PutUint16(p[4:], uint16(fragmentID.Load()))
	binary.BigEndian.PutUint16(p[6:], uint16(at/8))
	if more {
		p[6] |= 0x20
	}
	return p
}

// sendRaw sends IP packets.
func sendRaw(src, dst netip.Addr, packets ...[]byte) error {
	family := unix.AF_INET
	var to unix.Sockaddr
	if dst.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: dst.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: dst.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, p := range packets {
		if err := unix.Sendto(fd, p, 0, to); err != nil {
			return fmt.Errorf("from %s: %w", src, err)
		}
	}
	return nil
}

// forgedBatch has a VTEP send datagrams as one UDP_SEGMENT message, only the first of which is honest.
func forgedBatch(t *testing.T, d *Dataplane, vtep, target, other *testHost) {
	t.Helper()
	pad := make([]byte, 60)
	honest := forgedVXLAN(target, udpPacket(vtep.podAddr(), target.podAddr(), 1, 2, pad))
	forged := forgedVXLAN(target, udpPacket(other.podAddr(), target.podAddr(), 1, 2, pad))
	relay := forgedVXLAN(target, udpPacket(vtep.podAddr(), other.podAddr(), 1, 2, pad))
	otherVNI := append([]byte(nil), honest...)
	otherVNI[6]++
	before := d.Stats()
	vtep.Must(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(target.under[0], testPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		if err := setSegment(c, len(honest)); err != nil {
			return err
		}
		var b []byte
		for _, one := range [][]byte{honest, forged, relay, otherVNI, forged} {
			b = append(b, one...)
		}
		_, err = c.Write(b)
		return err
	})
	eventually(t, "each of a batch is judged", func() bool {
		now := d.Stats()
		return now.Drops[dataplane.DropBadSource] >= before.Drops[dataplane.DropBadSource]+2 && now.Drops[dataplane.DropBadVNI] > before.Drops[dataplane.DropBadVNI] &&
			now.Drops[dataplane.DropBadDestination] > before.Drops[dataplane.DropBadDestination] && now.RxPackets > before.RxPackets
	})
}

// forgedByPod has a pod send VXLAN to the port of another host: the datagram has the pod's address.
func forgedByPod(t *testing.T, d *Dataplane, vtep, target *testHost) {
	t.Helper()
	if target.under[0].Is6() {
		return // the underlay has no route back to the pod, and the datagram would not come without one
	}
	b := forgedVXLAN(target, udpPacket(vtep.podAddr(), target.podAddr(), 1, 2, make([]byte, 60)))
	before := d.Stats()
	vtep.pod.Must(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(target.under[0], testPort).String())
		if err == nil {
			defer c.Close()
			_, err = c.Write(b)
		}
		return err
	})
	eventually(t, "a pod is no VTEP", func() bool {
		return d.Stats().Drops[dataplane.DropUnknownVTEP] > before.Drops[dataplane.DropUnknownVTEP]
	})
}
