package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// newDualHosts makes hosts with both families in the overlay, whose VTEPs are of the
// families that under names: 4, 6 or both.
func newDualHosts(tb testing.TB, n int, under ...int) []*testHost {
	tb.Helper()
	hosts := newHosts(tb, n, testMTU)
	for i, h := range hosts {
		addr6 := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i + 2)})
		h.addr6(h.NS, "eth0", netip.PrefixFrom(addr6, 64))
		h.dual(i)
		h.under = nil
		for _, u := range under {
			h.under = append(h.under, map[int]netip.Addr{4: h.addr, 6: addr6}[u])
		}
	}
	return hosts
}

// dual gives h, the i-th host, and its pod IPv6.
func (h *testHost) dual(i int) {
	h.subnet6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x42, 7: byte(i + 1)}), 64)
	h.Must(func() error { return rtnl.SetSysctl("net/ipv6/conf/all/forwarding", "1") })
	h.addr6(h.NS, "veth0", netip.PrefixFrom(h.subnet6.Addr().Next(), 64))
	h.addr6(h.pod, "eth0", netip.PrefixFrom(h.podAddr6(), 64))
	h.pod.Must(func() error { return netlink.RouteReplace(&netlink.Route{Gw: h.subnet6.Addr().Next().AsSlice()}) })
}

// addr6 adds an address that can be used at once.
func (h *testHost) addr6(n *netnstest.NS, link string, p netip.Prefix) {
	h.tb.Helper()
	n.Must(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.AddrReplace(l, &netlink.Addr{IPNet: rtnl.IPNet(p), Flags: unix.IFA_F_NODAD})
	})
}

// bothFamilies moves ICMP, UDP and TCP of both families between the ends of two hosts, each
// starting.
func bothFamilies(t *testing.T, a, b *testHost) {
	t.Helper()
	for _, way := range []struct{ from, to *testHost }{{a, b}, {b, a}} {
		for _, src := range []*netnstest.NS{way.from.pod, way.from.NS} {
			for _, dst := range []netip.Addr{way.to.podAddr(), way.to.podAddr6()} {
				ping(t, src, dst)
				echo(t, src, way.to.pod, dst)
				transfer(t, src, way.to.pod, dst)
			}
		}
		echo(t, way.from.pod, way.to.NS, way.to.subnet.Addr())
		echo(t, way.from.pod, way.to.NS, way.to.subnet6.Addr())
		segmented(t, way.from.pod, way.to, way.to.podAddr())
		segmented(t, way.from.pod, way.to, way.to.podAddr6())
	}
}

// ping wants an answer to an ICMP echo.
func ping(tb testing.TB, from *netnstest.NS, to netip.Addr) {
	tb.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.PacketConn
	from.Must(func() (err error) { c, err = net.ListenPacket(network, ""); return err })
	defer c.Close()
	msg := []byte{request, 0, 0, 0, 0x4f, 0x56, 0, 1, 'p', 'i', 'n', 'g'}
	if to.Is4() { // over IPv6 the kernel does it
		binary.BigEndian.PutUint16(msg[2:], ^encap.Sum(msg, 0))
	}
	buf := make([]byte, 1500)
	for try := range 20 {
		if _, err := c.WriteTo(msg, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			tb.Fatalf("ping %s: %v", to, err)
		}
		c.SetReadDeadline(time.Now().Add(patienceOf(try)))
		for {
			n, who, err := c.ReadFrom(buf)
			if err != nil {
				break // again
			}
			if n == len(msg) && buf[0] == reply && buf[4] == msg[4] && who.String() == to.String() {
				return
			}
		}
	}
	tb.Fatalf("ping %s: no answer to 20 of them", to)
}

// TestTrafficOverEachUnderlay has both families inside, over each and both outside.
func TestTrafficOverEachUnderlay(t *testing.T) {
	t.Parallel()
	for name, under := range map[string][]int{"v4": {4}, "v6": {6}, "dual": {4, 6}} {
		for _, peer := range []string{"kernel", "userspace"} {
			t.Run(name+"/"+peer, func(t *testing.T) {
				t.Parallel() // hosts of its own
				hosts := newDualHosts(t, 2, under...)
				d := connect(hosts[0], hosts[1], peer == "kernel")
				bothFamilies(t, hosts[0], hosts[1])
				s := d.Stats()
				t.Logf("%+v", s)
				for why, n := range s.Drops {
					if n > 0 && dataplane.Drop(why) != dataplane.DropNoRoute { // the hosts' own multicast
						t.Errorf("%d packets dropped: %v", n, dataplane.Drop(why))
					}
				}
			})
		}
	}
}

// TestTrafficOverIPv6WithoutOffloads has each offload switched off over IPv6.
func TestTrafficOverIPv6WithoutOffloads(t *testing.T) {
	t.Parallel()
	sets := []Offloads{0, TUNVnet | UDPGRO}
	for bit := Offloads(1); bit&AllOffloads != 0; bit <<= 1 {
		sets = append(sets, AllOffloads&^bit)
	}
	for _, set := range sets {
		for _, peer := range []string{"kernel", "userspace"} {
			t.Run(fmt.Sprintf("%s/%s", set, peer), func(t *testing.T) {
				t.Parallel() // hosts of its own
				hosts := newDualHosts(t, 2, 6)
				hosts[0].offloads = set
				connect(hosts[0], hosts[1], peer == "kernel")
				for _, way := range []struct{ from, to *testHost }{{hosts[0], hosts[1]}, {hosts[1], hosts[0]}} {
					transfer(t, way.from.pod, way.to.pod, way.to.podAddr())
					transfer(t, way.from.pod, way.to.pod, way.to.podAddr6())
					segmented(t, way.from.pod, way.to, way.to.podAddr6())
				}
			})
		}
	}
}

// TestSyncBothFamilies looks at what Sync makes of the device.
func TestSyncBothFamilies(t *testing.T) {
	h := newDualHosts(t, 1, 4, 6)[0]
	d := h.open()
	w := h.wanted()
	w.Addrs = []netip.Prefix{netip.MustParsePrefix("10.42.1.1/32"), netip.MustParsePrefix("fd42:0:0:1::1/128")}
	h.Must(func() error { _, err := d.Sync(t.Context(), w); return err })
	h.run(d)
	if v := d.VTEPs(); len(v) != 2 || v[0].Addr != h.under[0] || v[1].Addr != h.under[1] || v[0].MAC == v[1].MAC {
		t.Errorf("VTEPs %v", v)
	}
	l := h.link()
	h.Must(func() error {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		want := map[string]bool{"10.42.1.0/32": true, "10.42.1.1/32": true, "fd42:0:0:1::/128": true, "fd42:0:0:1::1/128": true}
		for _, a := range addrs {
			if own := want[rtnl.Prefix(a.IPNet).String()]; own && a.Flags&unix.IFA_F_TENTATIVE != 0 { // the link-local one is the kernel's
				t.Errorf("%s is tentative", a.IPNet)
			}
			delete(want, rtnl.Prefix(a.IPNet).String())
		}
		if len(want) > 0 {
			t.Errorf("missing %v of %v", want, addrs)
		}
		routes, err6 := netlink.RouteList(l, netlink.FAMILY_V6)
		ours := 0
		for _, r := range routes {
			if r.Protocol == rtnl.RouteProtocol {
				ours++
				if rtnl.Prefix(r.Dst) != testNetwork6 {
					t.Errorf("route %v", r)
				}
			}
		}
		if ours != 1 {
			t.Errorf("%d IPv6 routes: %v", ours, routes)
		}
		return errors.Join(err, err6)
	})
}

// TestSmallMTUKeepsIPv4 has an MTU that IPv6 cannot have: Sync says so, and IPv4 works.
func TestSmallMTUKeepsIPv4(t *testing.T) {
	h := newDualHosts(t, 1, 4)[0]
	d := h.open()
	h.run(d)
	w := h.wanted()
	w.MTU = 1210
	if err := h.Do(func() error { _, err := d.Sync(context.Background(), w); return err }); !errors.Is(err, device.ErrMTU6) {
		t.Errorf("Sync: %v", err)
	}
	addrs, routes := h.state(h.link())
	if len(addrs) != 1 || len(routes) != 1 {
		t.Errorf("addresses %v, routes %v", addrs, routes)
	}
	h.sync(d) // and a larger MTU brings IPv6 back
	ping(t, h.NS, h.subnet6.Addr())
}

// TestDirectPeerMaySend: whoever is reached by a direct route may still encapsulate.
func TestDirectPeerMaySend(t *testing.T) {
	a, b := testPair(t)
	w := dataplane.Wanted{MTU: testMTU, Subnets: []netip.Prefix{subnetB}, Peers: []dataplane.Peer{{VTEP: a.VTEPs()[0], Subnets: []netip.Prefix{subnetA}, Direct: true}}}
	if err := b.Sync(w); err != nil {
		t.Fatal(err)
	}
	if decapsulate(b, encapsulate(t, a, udpPacket(podA, podB, 1, 2, nil))) == nil {
		t.Errorf("dropped: %+v", b.Stats())
	}
}

// TestOpenReplacesIPv6Device has what a dual-stack kernel dataplane leaves.
func TestOpenReplacesIPv6Device(t *testing.T) {
	h := newDualHosts(t, 1, 4, 6)[0]
	h.vxlan(true)
	d := h.open()
	h.sync(d)
	h.run(d)
	err := h.Do(func() error { _, err := netlink.LinkByName("flannel-v6.1"); return err })
	if !errors.As(err, &netlink.LinkNotFoundError{}) {
		t.Errorf("flannel-v6.1: %v", err)
	}
	ping(t, h.NS, h.subnet6.Addr())
}

// TestFailedOpenChangesNothing has an Open that fails early, and one that fails late: the kernel
// dataplane's device for IPv6 stays, and no new TUN device does.
func TestFailedOpenChangesNothing(t *testing.T) {
	for name, commands := range map[string][]string{
		"name taken": {"link add flannel.1 type bridge"},
		"port taken": {"link add other up type vxlan id 9 dstport 8472 local 2001:db8::2 dev eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newDualHosts(t, 1, 4, 6)[0]
			for _, c := range append(commands, "link add flannel-v6.1 up type vxlan id 1 dstport 8472 local 2001:db8::2 dev eth0") {
				h.Run("ip", strings.Fields(c)...)
			}
			before := h.Run("ip", "-o", "link")
			if err := h.Do(func() error { _, err := Open(h.config()); return err }); err == nil {
				t.Fatal("Open succeeded")
			} else {
				t.Log(err)
			}
			if after := h.Run("ip", "-o", "link"); after != before {
				t.Errorf("links before:\n%s\nand after:\n%s", before, after)
			}
		})
	}
}

// TestZeroChecksumOverIPv6IsNotTaken: over IPv6 the kernel drops a datagram without a
// UDP checksum, as RFC 8200 section 8.1 wants it, unless the socket asks for them
// (RFC 6935), which ours do not: neither does flannel's device.
func TestZeroChecksumOverIPv6IsNotTaken(t *testing.T) {
	hosts := newDualHosts(t, 2, 6)
	a, b := hosts[0], hosts[1]
	d := a.open()
	a.run(d)
	var c *net.UDPConn
	b.Must(func() (err error) {
		c, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.under[0], testPort)))
		return err
	})
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	send := func(zero int) {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, zero) })
		if _, werr := c.Write(make([]byte, 50)); err != nil || werr != nil {
			t.Fatal(err, werr)
		}
	}
	bad := func() uint64 { return d.Stats().Drops[dataplane.DropBadVNI] }
	for i := range 3 {
		send(1)
		send(0)
		eventually(t, "the one with a checksum", func() bool { return bad() > uint64(i) })
	}
	if bad() != 3 {
		t.Errorf("%d datagrams taken, 3 had a checksum", bad())
	}
}
