package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/userspace"
	"github.com/overlayd/overlayd/encap"
)

// world is an underlay of one family with three hosts of an overlay of both, each with a guard and a pod, and a stranger on
// the same link.
type world struct {
	t        testing.TB
	v6       bool // of the underlay
	under    *netnstest.NS
	hosts    []*host
	stranger *netnstest.NS
	strange  netip.Addr // of the stranger
	arrived  sync.Map   // texts of the packets that reached somebody, and where
	config   func(*Config)
	wanted   func(*dataplane.Wanted)
}

type host struct {
	*netnstest.NS
	w     *world
	index int
	addr  netip.Addr // on the underlay
	pod   *netnstest.NS
	guard *Guard
	dp    *kernel.Dataplane

	sockets *userspace.Dataplane // instead of dp, if a process forwards
	last    Drops
}

var testNetworks = prefixes("10.42.0.0/16", "fd42::/48")

func (h *host) subnets() []netip.Prefix {
	return prefixes(fmt.Sprintf("10.42.%d.0/24", h.index+1), fmt.Sprintf("fd42:0:0:%d::/64", h.index+1))
}

func (h *host) overlay(v6 bool) netip.Addr { return h.subnets()[family6(v6)].Addr() }
func (h *host) podAddr(v6 bool) netip.Addr { return h.overlay(v6).Next().Next() }

func family6(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

const testPort = 8472

// newWorld makes the hosts without anything of the overlay.
func newWorld(t testing.TB, v6 bool) *world {
	w := &world{t: t, v6: v6, stranger: netnstest.New(t)}
	var spaces []*netnstest.NS
	for i := range 3 {
		h := &host{NS: netnstest.New(t), w: w, index: i, pod: netnstest.New(t)}
		w.hosts, spaces = append(w.hosts, h), append(spaces, h.NS)
	}
	spaces = append(spaces, w.stranger)
	prefix, addr := "192.0.2.0/24", netip.MustParseAddr("192.0.2.2")
	w.under = netnstest.LAN(t, prefix, spaces...)
	if v6 {
		prefix, addr = "2001:db8::/64", netip.MustParseAddr("2001:db8::2")
		netnstest.Number(w.under, prefix, spaces...)
	}
	for _, h := range w.hosts {
		h.addr, addr = addr, addr.Next()
		h.addPod()
		h.listen(h.NS, "host")
		h.listen(h.pod, "pod")
	}
	w.strange = addr
	return w
}

// addPod links a pod, and lets the host forward without a check of the way back.
func (h *host) addPod() {
	netnstest.Link(h.NS, "veth0", h.pod, "eth0")
	for i, s := range h.subnets() {
		h.Addr("veth0", netip.PrefixFrom(s.Addr().Next(), s.Bits()).String())
		h.pod.Addr("eth0", netip.PrefixFrom(h.podAddr(i == 1), s.Bits()).String())
		h.pod.DefaultRoute(s.Addr().Next().String())
	}
	mtu := fmt.Sprint(1500 - encap.Overhead(h.addr))
	h.pod.Run("ip", "link", "set", "eth0", "mtu", mtu)
	h.Run("ip", "link", "set", "veth0", "mtu", mtu)
	h.Must(func() error {
		return errors.Join(rtnl.SetSysctl("net/ipv4/ip_forward", "1"), rtnl.SetSysctl("net/ipv6/conf/all/forwarding", "1"),
			rtnl.SetSysctl("net/ipv4/conf/all/rp_filter", "0"), rtnl.SetSysctl("net/ipv4/conf/eth0/rp_filter", "0"), rtnl.SetSysctl("net/ipv4/conf/veth0/rp_filter", "0"))
	})
}

// receivePort is the UDP port at which everybody listens, and echoes.
const receivePort = 9000

// listen notes what reaches any address of a namespace, and echoes it.
func (h *host) listen(ns *netnstest.NS, where string) {
	var c *net.UDPConn
	ns.Must(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: receivePort})
		return err
	})
	h.w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			h.w.arrived.Store(string(buf[:n]), fmt.Sprint(where, h.index))
			c.WriteTo(buf[:n], from)
		}
	}()
}

func (w *world) peer(h *host) dataplane.Peer {
	return dataplane.Peer{VTEP: dataplane.VTEP{Addr: h.addr, MAC: dataplane.MAC(h.addr, 1), VNI: 1}, Subnets: h.subnets()}
}

// joins are the ways to forward, by the kernel and by sockets.
func joins() map[string]func(*world) {
	return map[string]func(*world){"kernel": (*world).join, "sockets": func(w *world) { w.joinSockets(true) }}
}

// join opens guard and kernel dataplane on every host, and makes them peers.
func (w *world) join() {
	for _, h := range w.hosts {
		c := testConfig(w.t)
		c.IPv4, c.IPv6, c.Local = !w.v6, w.v6, []netip.Addr{h.addr}
		var eth0 *net.Interface
		h.Must(func() (err error) { eth0, err = net.InterfaceByName("eth0"); return err })
		c.Link = eth0.Index
		if w.config != nil {
			w.config(&c)
		}
		h.guard = openIn(w.t, h.NS, c)
		h.Must(func() (err error) {
			h.dp, err = kernel.Open(kernel.Config{Log: slog.New(slog.DiscardHandler), VNI: 1, GBP: c.GBP, Port: testPort, MTU: 1500 - encap.Overhead(h.addr), MayBeUp: h.guard.Holds,
				Underlays: []dataplane.Underlay{{Link: eth0.Index, Local: h.addr, Public: h.addr}}})
			return err
		})
		w.t.Cleanup(func() { h.dp.Close() })
	}
	for _, h := range w.hosts {
		h.sync()
	}
}

func (h *host) sync() {
	h.w.t.Helper()
	v := h.w.lastWanted(h)
	if h.w.wanted != nil {
		h.w.wanted(&v)
	}
	h.guard.sync(h.w.t, h.NS, v)
	h.Must(func() error {
		_, err := h.dp.Sync(context.Background(), v)
		return errors.Join(err, rtnl.SetSysctl("net/ipv4/conf/"+h.device()+"/rp_filter", "0"))
	})
}

func (h *host) device() string {
	if h.w.v6 {
		return dataplane.DeviceNameV6(1)
	}
	return dataplane.DeviceName(1)
}

// dropped returns what the guard has dropped since the last time.
func (h *host) dropped() (d Drops) {
	var now Drops
	h.Must(func() error { now = h.guard.Drops(); return nil })
	for i := range d {
		d[i] = now[i] - h.last[i]
	}
	h.last = now
	return d
}

// place returns where the packet with that text has arrived.
func (w *world) place(text string) string {
	p, _ := w.arrived.Load(text)
	s, _ := p.(string)
	return s
}

// packet is an IP packet with a UDP datagram of that payload.
func packet(src, dst netip.Addr, srcPort, dstPort uint16, payload []byte) []byte {
	u := binary.BigEndian.AppendUint16(nil, srcPort)
	u = binary.BigEndian.AppendUint16(u, dstPort)
	u = binary.BigEndian.AppendUint16(u, uint16(8+len(payload)))
	u = append(append(u, 0, 0), payload...)
	return ipPacket(src, dst, unix.IPPROTO_UDP, summed(src, dst, u))
}

// summed fills in the checksum of a UDP datagram.
func summed(src, dst netip.Addr, u []byte) []byte {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP, byte(len(u)>>8), byte(len(u)))
	sum := onesSum(pseudo, onesSum(u, 0))
	if sum = ^sum; sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(u[6:], sum)
	return u
}

func onesSum(b []byte, start uint16) uint16 {
	sum := uint32(start)
	for i := range b {
		sum += uint32(b[i]) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func ipPacket(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	if dst.Is6() {
		b := append([]byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), protocol, 64}, src.AsSlice()...)
		return append(append(b, dst.AsSlice()...), payload...)
	}
	n := 20 + len(payload)
	b := []byte{0x45, 0, byte(n >> 8), byte(n), 0x12, 0x34, 0, 0, 64, protocol, 0, 0}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], ^onesSum(b, 0))
	return append(b, payload...)
}

// frame is a datagram of VXLAN with an inner packet for the device of h.
func (h *host) frame(vni uint32, inner []byte) []byte {
	etherType := uint16(unix.ETH_P_IP)
	if len(inner) > 0 && inner[0]>>4 == 6 {
		etherType = unix.ETH_P_IPV6
	}
	return h.frameOf(vni, etherType, inner)
}

func (h *host) frameOf(vni uint32, etherType uint16, inner []byte) []byte {
	mac := dataplane.MAC(h.addr, 1)
	b := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	b = append(append(b, mac[:]...), 2, 2, 2, 2, 2, 2)
	return append(binary.BigEndian.AppendUint16(b, etherType), inner...)
}

// tagged is a datagram of VXLAN whose inner packet is behind VLAN tags of those kinds. Tags of VLAN 0 mean nothing, and the kernel takes them off.
func (h *host) tagged(kinds []uint16, inner []byte) []byte {
	d := h.frame(1, inner)
	for _, k := range slices.Backward(kinds) {
		d = slices.Insert(d, 20, byte(k>>8), byte(k), 0, 0)
	}
	return d
}

// sendRaw sends an IP packet as it is.
func sendRaw(ns *netnstest.NS, b []byte) {
	ns.Must(func() error {
		family, dst := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(b[16:20])})
		if b[0]>>4 == 6 {
			family, dst = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(b[24:40])}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, b, 0, dst)
	})
}

// sendFrame sends an IP packet from the pod by a packet socket, with the header of virtio_net_hdr before it.
func (h *host) sendFrame(header, b []byte) {
	var gateway net.HardwareAddr
	h.Must(func() error {
		i, err := net.InterfaceByName("veth0")
		if err == nil {
			gateway = i.HardwareAddr
		}
		return err
	})
	h.pod.Must(func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		kind := uint16(unix.ETH_P_IP)
		if b[0]>>4 == 6 {
			kind = unix.ETH_P_IPV6
		}
		frame := binary.BigEndian.AppendUint16(slices.Concat(header, gateway, i.HardwareAddr), kind)
		return unix.Sendto(fd, append(frame, b...), 0, &unix.SockaddrLinklayer{Ifindex: i.Index})
	})
}

// unusual gives an IP packet a header that few packets have: options in IPv4, a traffic class in IPv6.
func unusual(b []byte) []byte {
	if b[0]>>4 == 6 {
		b[0] |= 0xb
		return b
	}
	b = slices.Insert(b, 20, 1, 1, 1, 1) // no operation
	b[0]++
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[10:], 0)
	binary.BigEndian.PutUint16(b[10:], ^onesSum(b[:24], 0))
	return b
}

// fragments cuts an IP packet behind the first n bytes of its payload.
func fragments(b []byte, n int) [][]byte {
	if b[0]>>4 == 4 {
		first, second := append([]byte{}, b[:20+n]...), append(append([]byte{}, b[:20]...), b[20+n:]...)
		binary.BigEndian.PutUint16(first[6:], 0x2000)
		binary.BigEndian.PutUint16(second[6:], uint16(n/8))
		for _, f := range [][]byte{first, second} {
			binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
			binary.BigEndian.PutUint16(f[10:], 0)
			binary.BigEndian.PutUint16(f[10:], ^onesSum(f[:20], 0))
		}
		return [][]byte{first, second}
	}
	cut := func(payload []byte, field uint16) []byte {
		f := append(append([]byte{}, b[:40]...), b[6], 0, byte(field>>8), byte(field), 0x12, 0x34, 0x56, byte(len(b)))
		f = append(f, payload...)
		f[6] = unix.IPPROTO_FRAGMENT
		binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		return f
	}
	if n == 0 {
		return [][]byte{cut(b[40:], 0)} // of one piece (RFC 6946)
	}
	return [][]byte{cut(b[40:40+n], 1), cut(b[40+n:], uint16(n))}
}

// sendSegments sends datagrams of equal size at once (UDP_SEGMENT).
func sendSegments(ns *netnstest.NS, src, dst netip.Addr, segments ...[]byte) error {
	return sendSegmentsTo(ns, src, netip.AddrPortFrom(dst, testPort), segments...)
}

func sendSegmentsTo(ns *netnstest.NS, src netip.Addr, dst netip.AddrPort, segments ...[]byte) error {
	return ns.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), net.UDPAddrFromAddrPort(dst))
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var all []byte
		for _, s := range segments {
			all = append(all, s...)
		}
		if len(segments) > 1 {
			_ = raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(segments[0]))
				if err == nil && dst.Addr().Is4() { // without DF, as the kernel's device sends
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
				}
			})
			if err != nil {
				return err
			}
		}
		_, err = c.Write(all)
		return err
	})
}

// sendMany sends a datagram n times by one socket, which even a busy machine does within a moment.
func sendMany(ns *netnstest.NS, src, dst netip.Addr, n int, datagram []byte) error {
	return ns.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, testPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		for range n {
			if _, err := c.Write(datagram); err != nil {
				return err
			}
		}
		return nil
	})
}

// eventually polls until ok, for what the kernel brings about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(netnstest.Within(5 * time.Second)); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not in time: %s", what)
		}
	}
}

// exchange sends a datagram of that size from an address to another, and reports whether the echo came back.
func (w *world) exchange(ns *netnstest.NS, src, dst netip.Addr, size int) error {
	return w.exchangeAt(ns, src, netip.AddrPortFrom(dst, receivePort), size)
}

func (w *world) exchangeAt(ns *netnstest.NS, src netip.Addr, dst netip.AddrPort, size int) error {
	text := make([]byte, size)
	copy(text, fmt.Sprintf("%s-%s-%d", src, dst, size))
	return ns.Do(func() error {
		local := netip.AddrPortFrom(src, 0)
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(dst))
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(text); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(3 * time.Second))
		n, err := c.Read(make([]byte, 64<<10))
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes came back", n)
		}
		return err
	})
}

func (w *world) lastWanted(h *host) dataplane.Wanted {
	v := dataplane.Wanted{VTEPs: h.dp.VTEPs(), Subnets: h.subnets(), Networks: testNetworks, MTU: 1500 - encap.Overhead(h.addr)}
	for _, o := range w.hosts {
		if o != h {
			v.Peers = append(v.Peers, w.peer(o))
		}
	}
	return v
}

func expectError(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return nil
}
