package carrier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/uplink"
	"github.com/overlayd/overlayd/encap"
)

// tunnelHosts are two hosts on one link, of which a has a carrier with an uplink.
type tunnelHosts struct {
	t       *testing.T
	a, b    *netnstest.NS
	local   netip.Addr // of a
	carrier Carrier
	entries []Entry // one, to b
	log     *netnstest.Log
	counted Counters
	sender  Sender
}

var tunnelAddrs = map[string][2]string{"IPv4": {"192.0.2.1/24", "192.0.2.2/24"}, "IPv6": {"2001:db8::1/64", "2001:db8::2/64"}}

func newTunnelHosts(t *testing.T, family string, change func(*UDPConfig)) *tunnelHosts {
	t.Helper()
	h := &tunnelHosts{t: t, a: netnstest.New(t), b: netnstest.New(t), log: new(netnstest.Log)}
	netnstest.Link(h.a, "eth0", h.b, "eth0")
	h.a.Addr("eth0", tunnelAddrs[family][0])
	h.b.Addr("eth0", tunnelAddrs[family][1])
	h.local = netip.MustParsePrefix(tunnelAddrs[family][0]).Addr()
	cfg := UDPConfig{Log: slog.New(slog.NewTextHandler(h.log, nil)), Local: netip.AddrPortFrom(h.local, testPort), Segment: true, GRO: true}
	if change != nil {
		change(&cfg)
	}
	h.a.Must(func() (err error) { h.carrier, err = Tunnel(cfg).Open(1); return err })
	t.Cleanup(h.carrier.Close)
	h.entries = make([]Entry, 1)
	peer := NewPeer(netip.AddrPortFrom(netip.MustParsePrefix(tunnelAddrs[family][1]).Addr(), testPort))
	peer.Adopt(&h.entries[0], true)
	h.sender = h.carrier.NewSender()
	return h
}

// ready has the carrier find the way to b.
func (h *tunnelHosts) ready() *tunnelHosts {
	h.t.Helper()
	next := h.listen("eth0")
	h.send(superFor(h.t, false, 3000, 1000)) // wanted from now on
	if got := gather(next, 1); len(got) == 0 || len(got[0]) < 3000 && len(gather(next, 2)) < 2 {
		h.t.Fatal("nothing arrives by the sockets")
	}
	h.refresh()
	if h.way() == nil {
		h.t.Fatalf("there is no way by the uplink:\n%s", h.log)
	}
	return h
}

func (h *tunnelHosts) way() *uplink.Way { return h.entries[0].Peer.way.Load() }

// refresh is what the core does twice a second.
func (h *tunnelHosts) refresh() {
	h.t.Helper()
	h.refreshOf(h.entries)
}

// refreshOf is the same by a network that has these entries.
func (h *tunnelHosts) refreshOf(entries []Entry) {
	h.t.Helper()
	if t, ok := h.carrier.(*tunnelCarrier); ok {
		t.uplink.Hurry()
	}
	h.a.Must(func() error { h.carrier.Refresh(entries, 1400); return nil })
}

func (h *tunnelHosts) stats() (s dataplane.Stats) {
	h.counted.Publish()
	h.counted.AddTo(&s.TxPackets, &s.TxBytes, &s)
	return s
}

func (h *tunnelHosts) send(p Packet) {
	e := &h.entries[0]
	e.Template.Put(p.Datagram(), encap.EtherTypeIPv4)
	h.sender.Send(&p, e, false, &h.counted)
	h.sender.Flush(&h.counted)
}

// superFor returns a superpacket of TCP, over IPv4 or IPv6.
func superFor(t *testing.T, v6 bool, n int, size uint16) Packet {
	t.Helper()
	src, dst := podA, podB
	if v6 {
		src, dst = netip.MustParseAddr("fd42::1"), netip.MustParseAddr("fd42::2")
	}
	return superOf(t, packettest.TCP(src, dst, 1, make([]byte, n)), size)
}

func superOf(t *testing.T, b []byte, size uint16) Packet {
	t.Helper()
	var ip encap.IP
	if err := encap.ParseIP(b, &ip); err != nil {
		t.Fatal(err)
	}
	o, ok := encap.SuperOffload(b, &ip, size)
	if !ok {
		t.Fatal("no superpacket")
	}
	const at = uplink.Headroom + encap.HeaderLen
	return Packet{Buf: append(make([]byte, at), b...), At: at, Offload: o}
}

// How long to wait for what is to come, and for what is not.
const (
	patience = 5 * time.Second
	aMoment  = 200 * time.Millisecond
)

// listen opens a packet socket on a link of b for what is sent to the VXLAN port.
func (h *tunnelHosts) listen(link string) (next func(patience time.Duration) []byte) {
	h.t.Helper()
	var fd int
	h.b.Must(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: l.Attrs().Index})
	})
	h.t.Cleanup(func() { unix.Close(fd) })
	return func(patience time.Duration) []byte {
		timeout := unix.NsecToTimeval(patience.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			h.t.Error(err)
		}
		b := make([]byte, 1<<16)
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				return nil
			}
			l, ok := from.(*unix.SockaddrLinklayer)
			if ok && l.Pkttype == unix.PACKET_HOST && isVXLAN(b[:n]) {
				return b[14:n]
			}
		}
	}
}

func isVXLAN(frame []byte) bool {
	if len(frame) < 60 {
		return false
	}
	ip := frame[14:]
	at := packettest.HeaderLen(ip)
	return (ip[0]>>4 == 4 && ip[9] == 17 || ip[0]>>4 == 6 && ip[6] == 17) && binary.BigEndian.Uint16(ip[at+2:]) == testPort
}

// cut has a's link take no superpackets.
func (h *tunnelHosts) cut() {
	h.t.Helper()
	h.a.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetGSOMaxSize(l, 2000), netlink.LinkSetGSOIPv4MaxSize(l, 2000))
	})
}

// complete completes a checksum that is partial: between namespaces nobody does.
func complete(b []byte) {
	var ip encap.IP
	if encap.ParseIP(b, &ip) == nil && encap.IsPartial(b, &ip) {
		encap.CompleteChecksum(b, &ip)
	}
}

// TestTunnelSendsWhatSocketsSend compares each datagram, outer headers and all, with that of the sockets.
func TestTunnelSendsWhatSocketsSend(t *testing.T) {
	t.Parallel()
	v4, v6 := [2]netip.Addr{podA, podB}, [2]netip.Addr{netip.MustParseAddr("fd42::1"), netip.MustParseAddr("fd42::2")}
	ecn := func(b []byte) []byte {
		b[1] |= byte(encap.ECN0)
		binary.BigEndian.PutUint16(b[10:], 0)
		binary.BigEndian.PutUint16(b[10:], ^packettest.Sum(b[:20]))
		return b
	}
	flags := func(b []byte, f byte) []byte { // the checksum is made partial later
		b[packettest.HeaderLen(b)+13] = f
		return b
	}
	data := bytes.Repeat([]byte("0123456789abcde"), 300)
	for family := range tunnelAddrs {
		for _, df := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/df=%t", family, df), func(t *testing.T) {
				h := newTunnelHosts(t, family, func(c *UDPConfig) { c.DF = df }).ready()
				h.cut()
				next := h.listen("eth0")
				for name, b := range map[string][]byte{
					"TCP":                  packettest.TCP(v4[0], v4[1], 1<<32-1000, data),
					"TCP, two and a bit":   packettest.TCP(v4[0], v4[1], 5, data[:2601]),
					"TCP with ECN":         ecn(packettest.TCP(v4[0], v4[1], 7, data)),
					"TCP over IPv6":        packettest.TCP(v6[0], v6[1], 9, data),
					"TCP with CWR and FIN": flags(packettest.TCP(v4[0], v4[1], 1, data), 0x99),
					"UDP":                  packettest.UDP(v4[0], v4[1], 1, 2, data),
					"UDP over IPv6":        packettest.UDP(v6[0], v6[1], 1, 2, data),
				} {
					super := func() Packet { return superOf(t, bytes.Clone(b), 1300) }
					h.send(super())
					segments := (len(data) + 1299) / 1300
					if strings.Contains(name, "bit") {
						segments = 3
					}
					got := gather(next, segments)
					way := h.entries[0].Peer.way.Swap(nil)
					h.send(super())
					want := gather(next, segments)
					h.entries[0].Peer.way.Store(way)
					if !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
						t.Errorf("%s:\ngot  %s\nwant %s", name, heads(got), heads(want))
					}
				}
				if b := next(aMoment); b != nil {
					t.Errorf("more arrived: %x", b[:min(len(b), 120)])
				}
				h.counted.Publish()
				var s dataplane.Stats
				if h.counted.AddTo(&s.TxPackets, &s.TxBytes, &s); s.Drops != [dataplane.NumDrops]uint64{} || s.Offload.Fallbacks != 0 || s.TxPackets != 15 {
					t.Errorf("counted %+v", s)
				}
			})
		}
	}
}

// gather takes n packets, with what may differ between two sendings taken out: identification, and checksums
// that are yet to be completed.
func gather(next func(time.Duration) []byte, n int) (all [][]byte) {
	for range n {
		b := next(patience)
		if b == nil {
			return all
		}
		at := packettest.HeaderLen(b)
		inner := b[at+8+encap.HeaderLen:]
		outerSound := binary.BigEndian.Uint16(b[at+6:]) == packettest.Sum(packettest.PseudoHeader(b)) // partial
		complete(inner)
		outerSound = outerSound || packettest.Sound(b) || packettest.Sound(withPartial(b, inner))
		if outerSound {
			b[at+6], b[at+7] = 0, 1
		}
		if b[0]>>4 == 4 {
			copy(b[4:6], []byte{0, 0})
			copy(b[10:12], []byte{0, 0})
		}
		all = append(all, b)
	}
	return all
}

// withPartial returns b with the inner checksum partial: the outer one may be of that.
func withPartial(b, inner []byte) []byte {
	c := bytes.Clone(b)
	packettest.MakePartial(c[len(b)-len(inner):])
	return c
}

func heads(all [][]byte) string {
	var s strings.Builder
	for _, b := range all {
		fmt.Fprintf(&s, "\n  %d %x", len(b), b[:min(len(b), 120)])
	}
	return s.String()
}

// TestTunnelPassesSuperpacketsWhole shows what it is for, and that it costs no allocation.
func TestTunnelPassesSuperpacketsWhole(t *testing.T) {
	for family := range tunnelAddrs {
		t.Run(family, func(t *testing.T) {
			h := newTunnelHosts(t, family, nil).ready()
			next := h.listen("eth0")
			h.send(superFor(t, false, 60000, 1300))
			if b := next(patience); len(b) < 60000 {
				t.Errorf("%d bytes came first, not the superpacket", len(b))
			}
			p := superFor(t, false, 60000, 1300)
			e := &h.entries[0]
			if n := testing.AllocsPerRun(100, func() { h.sender.Send(&p, e, false, &h.counted); h.sender.Flush(&h.counted) }); n != 0 {
				t.Errorf("%v allocations per superpacket", n)
			}
		})
	}
}

// TestTunnelFallsBack takes the device away, or sets it down: nothing is lost, and it is there again after a look.
func TestTunnelFallsBack(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string][]string{"deleted": {"link", "del", "ovl.up0"}, "down": {"link", "set", "ovl.up0", "down"}} {
		t.Run(name, func(t *testing.T) {
			h := newTunnelHosts(t, "IPv4", nil).ready()
			h.cut()
			next := h.listen("eth0")
			h.a.Run("ip", fault...)
			h.send(superFor(t, false, 3000, 1000))
			if got := gather(next, 3); len(got) != 3 {
				t.Errorf("%d of 3 segments arrived by the sockets", len(got))
			}
			for range 2 { // the second has the way
				h.refresh()
			}
			if h.way() == nil {
				t.Fatalf("the uplink is not used again:\n%s", h.log)
			}
			objects, changes := h.carrier.(Keeper).Objects()
			if objects[0].Have != 1 || objects[1].Have != 1 || len(changes) != 1 {
				t.Errorf("objects %+v, changes %+v", objects, changes)
			}
			h.send(superFor(t, false, 3000, 1000))
			if got := gather(next, 3); len(got) != 3 {
				t.Errorf("%d of 3 segments arrived by the new uplink", len(got))
			}
			h.counted.Publish()
			var s dataplane.Stats
			if h.counted.AddTo(&s.TxPackets, &s.TxBytes, &s); s.Offload.Fallbacks != 1 || s.TxPackets != 3 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// TestTunnelRenamed renames the device, as udev may. The kernel keeps no table for the new name. A file that somebody else holds does not keep
// the old device.
func TestTunnelRenamed(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	h.cut()
	held, err := unix.FcntlInt(h.carrier.(*tunnelCarrier).uplink.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	next := h.listen("eth0")
	h.a.Run("ip", "link", "set", "ovl.up0", "name", "other0")
	for range 2 { // the second has the way
		h.refresh()
	}
	h.send(superFor(t, false, 3000, 1000))
	if got := gather(next, 3); len(got) != 3 || h.way() == nil {
		t.Errorf("%d of 3 segments arrived by the new uplink, way %+v", len(got), h.way())
	}
	if _, changes := h.carrier.(Keeper).Objects(); len(changes) != 1 || changes[0].Was != "the device was renamed to other0" {
		t.Errorf("changes %+v", changes)
	}
	if links := h.a.Run("ip", "-br", "link"); strings.Contains(links, "other0") {
		t.Errorf("the renamed device stays:\n%s", links)
	}
}

// TestTunnelOfAnotherNetwork has two networks of a port share the uplink. Only the Refresh of the one sees a change: what the other sends
// until its own takes the sockets, for the uplink has no next hop for it.
func TestTunnelOfAnotherNetwork(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change []string
		peers  int // of the one: it has the same as the other, or none
	}{
		"device made again": {[]string{"link", "del", "ovl.up0"}, 0},
		"route withdrawn":   {[]string{"route", "replace", "192.0.2.2", "nexthop", "dev", "eth0", "nexthop", "dev", "eth0", "weight", "2"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTunnelHosts(t, "IPv4", nil).ready()
			h.cut()
			next := h.listen("eth0")
			one := make([]Entry, tt.peers)
			for i := range one {
				NewPeer(netip.AddrPortFrom(h.entries[0].Peer.Addr, testPort)).Adopt(&one[i], true)
				one[i].Peer.wants.Store(true)
			}
			h.a.Run("ip", tt.change...)
			h.refreshOf(one)
			if h.way() == nil || h.carrier.(*tunnelCarrier).uplink.InUse() != nil {
				t.Fatalf("the way of the other is %+v:\n%s", h.way(), h.log)
			}
			h.send(superFor(t, false, 3000, 1000))
			if got := gather(next, 3); len(got) != 3 {
				t.Errorf("%d of 3 segments arrived", len(got))
			}
			h.counted.Publish()
			var s dataplane.Stats
			if h.counted.AddTo(&s.TxPackets, &s.TxBytes, &s); s.Offload.Fallbacks != 1 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// TestTunnelIsBounded has a link that takes nothing for a while. When the buffer of the uplink is full, that of the socket takes what comes. What
// does not fit there either is dropped, before it is much.
func TestTunnelIsBounded(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	h.a.Run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8kbit", "burst", "100k", "limit", "1g")
	const size, most = 60000, 800 // the kernel counts more for a superpacket than its bytes
	h.counted = Counters{}
	n := uint64(0)
	for n < most && h.counted.Dropped(dataplane.DropWriteError) < 5 {
		h.send(superFor(t, false, size, 1300))
		n++
	}
	s := h.stats()
	if n == most {
		t.Errorf("%d superpackets of %d bytes wait for the link, and none was dropped", most, size)
	}
	if s.TxPackets+s.Drops[dataplane.DropWriteError] != n || s.Drops[dataplane.DropQueueFull] != 0 {
		t.Errorf("of %d superpackets: %+v", n, s)
	}
	if wire := h.handedOver(); wire < s.TxPackets*size || wire > s.TxPackets*size*5/4 {
		t.Errorf("the link has %d bytes of %d superpackets that were sent", wire, s.TxPackets)
	}
	if h.way() == nil {
		t.Error("a full link ends the use of the uplink")
	}
}

// handedOver returns how many bytes the queueing discipline of a's link was given and took.
func (h *tunnelHosts) handedOver() (n uint64) {
	h.t.Helper()
	h.a.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.QdiscList(l)
		for _, q := range all {
			if s := q.Attrs().Statistics; s != nil && q.Attrs().Parent == netlink.HANDLE_ROOT {
				n += s.Basic.Bytes + uint64(s.Queue.Backlog)
			}
		}
		return err
	})
	return n
}

// TestTunnelBesideDeadNeighbours: hosts that are gone have packets wait in the buffer of the uplink. What is for another host arrives nevertheless.
func TestTunnelBesideDeadNeighbours(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	h.cut()
	dead := make([]Entry, 100)
	for i := range dead {
		NewPeer(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}), testPort)).Adopt(&dead[i], true)
		dead[i].Peer.wants.Store(true)
	}
	h.refreshOf(append(dead, h.entries...))
	full := func() bool {
		for range 4 { // a neighbour has a queue of about so many
			for i := range dead {
				h.counted.Publish()
				p := superFor(t, false, 60000, 1000)
				h.sender.(*tunnelSender).sendWhole(&p, &dead[i], &h.counted)
				if h.counted.Offload.TxSuperpackets == 0 {
					return true
				}
			}
		}
		return false
	}
	if !full() {
		t.Fatal("the buffer of the uplink is not full")
	}
	next := h.listen("eth0")
	h.send(superFor(t, false, 3000, 1000))
	if got := gather(next, 3); len(got) != 3 {
		t.Errorf("%d of 3 segments arrived", len(got))
	}
	if b := next(aMoment); b != nil {
		t.Errorf("more arrived: %x", b[:min(len(b), 120)])
	}
	if s := h.stats(); s.Drops != [dataplane.NumDrops]uint64{} {
		t.Errorf("counted %+v", s)
	}
}

// TestTunnelRefusesTinySegments: a packet socket of a pod can ask for 60 000 segments of one packet. Neither way takes it.
func TestTunnelRefusesTinySegments(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	before := h.stats()
	h.send(superFor(t, false, 60000, 1))
	h.entries[0].Peer.way.Store(nil)
	h.send(superFor(t, false, 60000, 1))
	if s := h.stats(); s.Drops[dataplane.DropBadHeader] != 2 || s.TxPackets != before.TxPackets || s.Offload.TxSegments != before.Offload.TxSegments {
		t.Errorf("counted %+v, before %+v", s, before)
	}
}

// TestTunnelWithoutDevice is a host that has no TAP devices: it forwards by sockets and says so once.
func TestTunnelWithoutDevice(t *testing.T) {
	t.Parallel()
	n, log := netnstest.New(t), new(netnstest.Log)
	var c Carrier
	n.Must(func() (err error) {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", "/dev/net", "tmpfs", 0, "")); err != nil {
			return err
		}
		c, err = Tunnel(UDPConfig{Log: slog.New(slog.NewTextHandler(log, nil)), Local: netip.MustParseAddrPort("127.0.0.1:8472")}).Open(1)
		return err
	})
	defer c.Close()
	if _, ok := c.(*udpCarrier); !ok || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "no tunnel offload") {
		t.Errorf("got %T, and the log %q", c, log)
	}
}

// TestTunnelFollowsRoutes moves the route to the peer from one link to another one, and then to several at once.
func TestTunnelFollowsRoutes(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil)
	netnstest.Link(h.a, "eth1", h.b, "eth1")
	h.a.Addr("eth1", "192.0.3.1/24")
	h.b.Addr("eth1", "192.0.3.2/24")
	h.b.Addr("lo", "198.51.100.1/32")
	h.a.Run("ip", "route", "add", "198.51.100.1", "via", "192.0.2.2")
	peer := NewPeer(netip.MustParseAddrPort("198.51.100.1:8472"))
	peer.Adopt(&h.entries[0], true)
	h.ready()
	first, second := h.listen("eth0"), h.listen("eth1")
	h.send(superFor(t, false, 3000, 1000))
	if first(patience) == nil || second(aMoment) != nil {
		t.Error("it did not go by the first link")
	}
	h.a.Run("ip", "route", "replace", "198.51.100.1", "via", "192.0.3.2")
	h.refresh()
	h.send(superFor(t, false, 3000, 1000))
	if second(patience) == nil || first(aMoment) != nil {
		t.Error("it did not go by the second link")
	}
	for _, to := range []string{"198.51.100.1 nexthop via 192.0.2.2 nexthop via 192.0.3.2", "unreachable 198.51.100.1"} { // in this order
		h.a.Run("ip", strings.Fields("route replace "+to)...)
		if h.refresh(); h.way() != nil {
			t.Errorf("with the route %q the uplink is used", to)
		}
	}
	h.a.Run("ip", "route", "del", "unreachable", "198.51.100.1")
	h.a.Run("ip", "route", "replace", "198.51.100.1", "via", "192.0.2.2", "mtu", "1000")
	if h.refresh(); h.way() == nil || h.way().MTU != 1000 {
		t.Errorf("the way is %+v", h.way())
	}
}

// TestTunnelTTL: the TTL is that of all datagrams, whatever hop limit the route has.
func TestTunnelTTL(t *testing.T) {
	t.Parallel()
	for family, tt := range map[string]struct {
		at    int // of the TTL in the outer header
		route string
	}{"IPv4": {8, "-4 route replace 192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.1"}, "IPv6": {7, "-6 route replace 2001:db8::/64 dev eth0 proto kernel metric 256"}} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			h := newTunnelHosts(t, family, nil).ready()
			h.cut()
			next := h.listen("eth0")
			h.a.Run("ip", strings.Fields(tt.route+" hoplimit 5")...)
			if h.refresh(); h.way() == nil {
				t.Fatal("there is no way by the uplink")
			}
			for _, by := range []string{"uplink", "sockets"} {
				h.send(superFor(t, false, 3000, 1000))
				for range 3 {
					if b := next(patience); len(b) <= tt.at || b[tt.at] != udp.OuterTTL {
						t.Errorf("by the %s: %x", by, b[:min(len(b), 40)])
					}
				}
				h.entries[0].Peer.way.Store(nil)
			}
		})
	}
}

// TestTunnelNeedsLink turns off what a link needs: then the sockets have superpackets for a peer that has sockets, too, unless the tunnel is asked for.
func TestTunnelNeedsLink(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ethtool"); err != nil {
		netnstest.Lacks(t, "ethtool")
	}
	for _, tt := range []struct{ sockets, always, way bool }{{true, false, false}, {true, true, true}, {false, false, true}, {false, true, true}} {
		h := newTunnelHosts(t, "IPv4", func(c *UDPConfig) { c.ExpectTunnel = tt.always }).ready()
		h.entries[0].Peer.SetSockets(tt.sockets)
		for _, feature := range []string{"tx-udp_tnl-csum-segmentation", "tx-tcp-segmentation"} {
			h.a.Run("ethtool", "-K", "eth0", feature, "off")
			if h.refresh(); (h.way() != nil) != tt.way || (h.log.Count("the kernel would cut superpackets") == 1) == tt.way {
				t.Errorf("%s off, %+v: the way is %+v\n%s", feature, tt, h.way(), h.log)
			}
			h.a.Run("ethtool", "-K", "eth0", feature, "on")
			if h.refresh(); h.way() == nil {
				t.Errorf("%s on again: there is no way", feature)
			}
		}
	}
}

// TestTunnelOverBridge: a bridge says that it takes superpackets of a tunnel, but the kernel cuts them for it.
func TestTunnelOverBridge(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil)
	h.a.Run("ip", "addr", "flush", "dev", "eth0")
	h.a.Run("ip", "link", "add", "br0", "type", "bridge")
	h.a.Run("ip", "link", "set", "eth0", "master", "br0")
	h.a.Run("ip", "link", "set", "br0", "up")
	h.a.Addr("br0", tunnelAddrs["IPv4"][0])
	h.ready()
	next := h.listen("eth0")
	h.send(superFor(t, false, 60000, 1300))
	if b := next(patience); len(b) == 0 || len(b) > 1500 {
		t.Errorf("%d bytes arrived at once: the kernel does not cut, and the uplink may be used", len(b))
	}
	h.entries[0].Peer.SetSockets(true)
	if h.refresh(); h.way() != nil {
		t.Error("a peer that has sockets has a way by the uplink")
	}
}

// TestTunnelFollowsPeer: the way ends and comes back when the peer changes its dataplane, without a change of routes.
func TestTunnelFollowsPeer(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ethtool"); err != nil {
		netnstest.Lacks(t, "ethtool")
	}
	h := newTunnelHosts(t, "IPv4", nil).ready()
	h.a.Run("ethtool", "-K", "eth0", "tx-udp_tnl-csum-segmentation", "off")
	for _, sockets := range []bool{true, false, true} {
		h.entries[0].Peer.SetSockets(sockets)
		if h.refresh(); (h.way() == nil) != sockets {
			t.Errorf("sockets %t: the way is %+v", sockets, h.way())
		}
	}
}

// TestTunnelLeavesIPsecAlone: policies of IPsec are for what sockets send.
func TestTunnelLeavesIPsecAlone(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	for _, tt := range []struct{ begin, end string }{
		{"add src 192.0.2.1 dst 192.0.2.2 dir out tmpl proto esp mode transport", "flush"},
		{"setdefault out block", "setdefault out accept"},
	} {
		h.a.Run("ip", append([]string{"xfrm", "policy"}, strings.Fields(tt.begin)...)...)
		if h.refresh(); h.way() != nil {
			t.Errorf("the uplink is used in spite of %q", tt.begin)
		}
		h.a.Run("ip", append([]string{"xfrm", "policy"}, strings.Fields(tt.end)...)...)
		if h.refresh(); h.way() == nil {
			t.Errorf("the uplink is not used again after %q", tt.end)
		}
	}
	h.a.Run("ip", "xfrm", "policy", "setdefault", "in", "block") // what arrives has been through the policies
	if h.refresh(); h.way() == nil {
		t.Error("the uplink is not used because of a policy for what arrives")
	}
}

// TestTunnelLeavesNothing looks for what is left after Close.
func TestTunnelLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newTunnelHosts(t, "IPv4", nil).ready()
	seen := func() string {
		links := h.a.Run("ip", "-br", "link", "show", "type", "tun")
		tables, err := h.a.Output("nft", "list", "tables")
		if errors.Is(err, exec.ErrNotFound) {
			netnstest.Lacks(t, "nft")
		}
		return links + tables
	}
	if s := seen(); !strings.Contains(s, "ovl.up0") || !strings.Contains(s, "overlayd-ovl.up0") {
		t.Errorf("while it is open: %q", s)
	}
	if out, err := h.a.Output("nft", "delete", "table", "netdev", "overlayd-ovl.up0"); err == nil {
		t.Errorf("somebody else deleted its table: %s", out)
	}
	h.carrier.Close()
	left := seen()
	for limit := time.Now().Add(10 * time.Second); left != "" && time.Now().Before(limit); left = seen() { // the kernel takes its time
	}
	if left != "" {
		t.Errorf("left: %q", left)
	}
}
