package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// link returns the overlay device of h, or nil.
func (h *testHost) link() (l netlink.Link) {
	h.tb.Helper()
	h.Must(func() error {
		c, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		if l, err = c.Link("flannel.1"); errors.Is(err, rtnl.ErrNotFound) {
			l, err = nil, nil
		}
		return err
	})
	return l
}

// device returns what Sync is to have made: addresses and destinations routed to it.
func (h *testHost) state(l netlink.Link) (addrs, routes []netip.Prefix) {
	h.tb.Helper()
	h.Must(func() error {
		as, err := netlink.AddrList(l, netlink.FAMILY_V4)
		for _, a := range as {
			addrs = append(addrs, rtnl.Prefix(a.IPNet))
		}
		rs, err2 := netlink.RouteList(l, netlink.FAMILY_V4)
		for _, r := range rs {
			if r.Protocol == rtnl.RouteProtocol {
				routes = append(routes, rtnl.Prefix(r.Dst))
			}
		}
		return errors.Join(err, err2)
	})
	return addrs, routes
}

func (h *testHost) requireSynced() netlink.Link {
	h.tb.Helper()
	l := h.link()
	if l == nil {
		h.tb.Fatal("no device")
	}
	addrs, routes := h.state(l)
	if want := []netip.Prefix{netip.PrefixFrom(h.subnet.Addr(), 32)}; !slices.Equal(addrs, want) {
		h.tb.Errorf("addresses %v, want %v", addrs, want)
	}
	if want := []netip.Prefix{testNetwork}; !slices.Equal(routes, want) {
		h.tb.Errorf("routes %v, want %v", routes, want)
	}
	if a := l.Attrs(); a.MTU != testMTU || a.Alias != rtnl.Alias || a.Flags&net.FlagUp == 0 {
		h.tb.Errorf("device has MTU %d, alias %q, flags %v", a.MTU, a.Alias, a.Flags)
	}
	return l
}

func newHost(tb testing.TB) *testHost { return newHosts(tb, 1, testMTU)[0] }

func TestDeviceDownBeforeFirstSync(t *testing.T) {
	h := newHost(t)
	h.run(h.open())
	l := h.link()
	addrs, routes := h.state(l)
	if l.Attrs().Flags&net.FlagUp != 0 || len(addrs)+len(routes) > 0 {
		t.Errorf("before Sync: flags %v, addresses %v, routes %v", l.Attrs().Flags, addrs, routes)
	}
	h.Must(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/flannel.1/accept_ra")
		if err == nil && string(b) != "0\n" {
			t.Errorf("accept_ra is %s", b)
		}
		return err
	})
}

func TestRestartAttachesToDevice(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	stop := h.run(d)
	index := h.requireSynced().Attrs().Index
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	h.requireSynced() // nothing goes when the process does
	d = h.open()
	h.requireSynced()
	h.sync(d)
	h.run(d)
	if l := h.requireSynced(); l.Attrs().Index != index {
		t.Errorf("index %d after restart, %d before", l.Attrs().Index, index)
	}
}

func TestSyncChangesSubnet(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	h.subnet = netip.MustParsePrefix("10.42.77.0/24")
	h.sync(d)
	h.requireSynced()
	h.run(d)
}

// TestSecondSyncWritesNothing listens to the kernel while nothing changes, until
// it sees what the test itself does afterwards.
func TestSecondSyncWritesNothing(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	done := make(chan struct{})
	defer close(done)
	ns := h.Handle()
	links, addrs, routes := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate)
	if err := errors.Join(netlink.LinkSubscribeAt(ns, links, done), netlink.AddrSubscribeAt(ns, addrs, done), netlink.RouteSubscribeAt(ns, routes, done)); err != nil {
		t.Fatal(err)
	}
	h.sync(d)
	h.Addr("lo", "198.51.100.7/32")
	h.Must(func() error { return setMTU("lo", 1500) })
	seen := map[string]bool{}
	for timeout := time.After(5 * time.Second); len(seen) < 3; {
		select {
		case l := <-links:
			if seen["link"] = true; l.Attrs().Name != "lo" {
				t.Errorf("link written: %v", l.Attrs().Name)
			}
		case a := <-addrs:
			switch ours := rtnl.Prefix(&a.LinkAddress); {
			case ours.Addr().IsLinkLocalUnicast(): // the kernel's own, a while after the link came up
			case ours.String() == "198.51.100.7/32":
				seen["addr"] = true
			default:
				t.Errorf("address written: %v", a)
			}
		case r := <-routes:
			switch {
			case r.Dst != nil && r.Dst.IP.Equal(net.IPv4(198, 51, 100, 7)):
				seen["route"] = true
			case r.Protocol == rtnl.RouteProtocol:
				t.Errorf("route written: %v", r)
			}
		case <-timeout:
			t.Fatalf("saw only %v", seen)
		}
	}
	h.run(d)
}

func TestOpenReplacesOtherDevice(t *testing.T) {
	tests := map[string]struct {
		inTheWay func(h *testHost)
		offloads Offloads
	}{
		"kernel dataplane":  {func(h *testHost) { h.vxlan(true) }, AllOffloads},
		"multi-queue TUN":   {func(h *testHost) { h.leaveTUN(netlink.TUNTAP_MODE_TUN, 2) }, 0},
		"single-queue TUN":  {func(h *testHost) { h.leaveTUN(netlink.TUNTAP_MODE_TUN, 1) }, AllOffloads},
		"TAP":               {func(h *testHost) { h.leaveTUN(netlink.TUNTAP_MODE_TAP, 1) }, AllOffloads},
		"plain for all":     {func(h *testHost) { h.leave(0) }, AllOffloads},
		"all for plain":     {func(h *testHost) { h.leave(AllOffloads) }, 0},
		"no queues for all": {func(h *testHost) { h.leave(AllOffloads &^ TUNMultiqueue) }, AllOffloads},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			test.inTheWay(h)
			old := h.link().Attrs().Index
			h.offloads = test.offloads
			d := h.open()
			h.sync(d)
			h.run(d)
			if l := h.requireSynced(); l.Attrs().Index == old || l.Type() != "tun" && l.Type() != "tuntap" {
				t.Errorf("device is the %s with index %d, the old one had %d", l.Type(), l.Attrs().Index, old)
			}
		})
	}
}

// TestRefusalLeavesTheKernelDevice: if the port cannot be had, a kernel
// dataplane that still forwards is not torn down first.
func TestRefusalLeavesTheKernelDevice(t *testing.T) {
	h := newHost(t)
	h.Run("ip", "link", "add", "flannel.1", "up", "type", "vxlan", "id", "1", "dstport", "8472")
	h.Run("ip", "link", "add", "other", "up", "type", "vxlan", "id", "9", "dstport", "8472")
	before := h.link().Attrs().Index
	err := h.Do(func() error { _, err := Open(h.config()); return err })
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "other") {
		t.Errorf("got %v", err)
	}
	if l := h.link(); l.Attrs().Index != before || l.Type() != "vxlan" {
		t.Errorf("device is the %s with index %d now", l.Type(), l.Attrs().Index)
	}
}

// TestOtherNetworksMakeRoom: in the first Sync the vxlan devices of the other networks that this process
// is going to carry leave the port, and nothing for these leaves by another way meanwhile; the device of anybody else
// stays, and so does then all the rest.
func TestOtherNetworksMakeRoom(t *testing.T) {
	for _, mine := range []bool{true, false} {
		h := newHost(t)
		h.Run("ip", "link", "add", "flannel.1", "up", "type", "vxlan", "id", "1", "dstport", "8472")
		h.Run("ip", "link", "add", "flannel.9", "up", "type", "vxlan", "id", "9", "dstport", "8472")
		h.Run("ip", "route", "add", "10.9.3.0/24", "via", "10.9.3.0", "dev", "flannel.9", "onlink", "proto", "211")
		h.Run("ip", "route", "add", "10.9.4.0/24", "via", "10.9.4.0", "dev", "flannel.9", "onlink")
		config := h.config()
		config.Replaces = func(vni uint32) bool { return mine && vni == 9 }
		var d *Dataplane
		err := h.Do(func() (err error) { d, err = Open(config); return err })
		if (err == nil) != mine {
			t.Fatalf("its own: %v, got %v", mine, err)
		}
		if d != nil {
			h.vteps = d.VTEPs()
			h.sync(d)
		}
		links, held := h.Run("ip", "-br", "link", "show", "up"), h.Run("ip", "route", "show", "type", "blackhole")
		if strings.Contains(links, "flannel.9") == mine || strings.Count(held, "proto 211") == 2 != mine {
			t.Errorf("its own: %v, links\n%s\nblackholes\n%s", mine, links, held)
		}
		if d != nil {
			d.Close()
		}
	}
}

// TestRestartWithOtherOffloads attaches to a device that an earlier process left
// with vnet headers and superpackets, or without, which the kernel remembers.
func TestRestartWithOtherOffloads(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	one := AllOffloads &^ TUNMultiqueue // the other mode is another device
	var index int
	for i, offloads := range []Offloads{one, 0, one, TUNVnet, 0} {
		a.offloads = offloads
		d := a.open()
		if i == 0 {
			b.vxlan(true)
			b.vxlanPeer(a)
			index = a.link().Attrs().Index
		}
		a.sync(d, b)
		stop := a.run(d)
		echo(t, a.pod, b.pod, b.podAddr())
		transfer(t, a.pod, b.pod, b.podAddr())
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := a.requireSynced().Attrs().Index; got != index {
			t.Errorf("%s: index %d, want %d as before", offloads, got, index)
		}
	}
}

// leaveTUN leaves a persistent TUN device as other programs make them.
func (h *testHost) leaveTUN(mode netlink.TuntapMode, queues int) {
	h.Must(func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: mode, Queues: queues}
		if queues == 1 {
			tun.Queues, tun.Flags = 0, netlink.TUNTAP_NO_PI
		}
		tun.Name = "flannel.1"
		err := netlink.LinkAdd(tun)
		for _, fd := range tun.Fds {
			fd.Close()
		}
		return err
	})
}

// leave leaves the device as a dataplane with these offloads does.
func (h *testHost) leave(offloads Offloads) {
	h.offloads = offloads
	d := h.open()
	h.sync(d)
	if err := h.run(d)(); err != nil {
		h.tb.Fatal(err)
	}
}

func TestOpenRefused(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, h *testHost)
		thread  func() error // on the thread of Open
		is      error
		says    string
	}{
		"busy": {
			prepare: func(t *testing.T, h *testHost) { h.run(h.open()) },
			is:      ErrDeviceBusy, says: "another process",
		},
		"port in use": {
			prepare: func(t *testing.T, h *testHost) {
				h.Must(func() error {
					c, err := net.ListenPacket("udp4", ":8472")
					t.Cleanup(func() { c.Close() })
					return err
				})
			},
			is: unix.EADDRINUSE, says: "port 8472 is in use by a program",
		},
		"port held by the device of another VNI": {
			prepare: func(t *testing.T, h *testHost) {
				h.Run("ip", "link", "add", "flannel.9", "up", "type", "vxlan", "id", "9", "dstport", "8472")
			},
			is: unix.EADDRINUSE, says: "by vxlan device flannel.9",
		},
		"foreign device": {
			prepare: func(t *testing.T, h *testHost) { netnstest.Link(h.NS, "flannel.1", h.pod, "peer") },
			says:    "type veth",
		},
		"local address missing": {
			prepare: func(t *testing.T, h *testHost) { h.under[0] = netip.MustParseAddr("198.51.100.1") },
			is:      unix.EADDRNOTAVAIL, says: "198.51.100.1",
		},
		"no TUN device": { // there is one after mknod, but it may not be opened
			thread: func() error { return emptyDevNet(unix.MS_NODEV) },
			is:     ErrNoTUN, says: "/dev/net/tun",
		},
		"read-only /dev": {
			thread: func() error { return emptyDevNet(unix.MS_RDONLY) },
			is:     ErrNoTUN, says: "/dev/net/tun",
		},
		"no capability": {
			thread: dropNetAdmin,
			is:     ErrPermission, says: "CAP_NET_ADMIN is missing",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if test.prepare != nil {
				test.prepare(t, h)
			}
			before := h.link()
			err := h.Do(func() error {
				if test.thread != nil {
					if err := test.thread(); err != nil {
						return err
					}
				}
				_, err := Open(h.config())
				return err
			})
			if err == nil || !strings.Contains(err.Error(), test.says) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("error %v, want one that says %q and is %v", err, test.says, test.is)
			}
			if after := h.link(); (before == nil) != (after == nil) {
				t.Errorf("device before %v, after %v", before, after)
			}
		})
	}
}

// dropNetAdmin takes CAP_NET_ADMIN from the calling thread for good.
func dropNetAdmin() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	data[0].Permitted &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&hdr, &data[0])
}

// TestBufferWithoutCapability shows what is left if SO_RCVBUFFORCE is refused.
func TestBufferWithoutCapability(t *testing.T) {
	n := netnstest.New(t)
	err := n.Do(func() error {
		if err := dropNetAdmin(); err != nil {
			return err
		}
		fd, err := udp.Open(netip.MustParseAddrPort("127.0.0.1:0"), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		size, err := udp.GrowBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 16<<20)
		if err != nil || size <= 0 {
			t.Errorf("buffer of %d bytes, %v", size, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// emptyDevNet gives the calling thread a /dev/net without tun, for good.
func emptyDevNet(mountFlags uintptr) error {
	return errors.Join(
		unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", filepath.Dir(tun.Path), "tmpfs", mountFlags, ""),
	)
}

// TestOpenMakesNode opens in what a container without --device looks like.
func TestOpenMakesNode(t *testing.T) {
	h := newHost(t)
	var d *Dataplane
	h.Must(func() (err error) {
		if err := emptyDevNet(0); err != nil {
			return err
		}
		d, err = Open(h.config())
		return err
	})
	h.run(d)
}

// TestTUNNoAllocations lets the kernel answer pings through the device.
func TestTUNNoAllocations(t *testing.T) {
	for _, offloads := range []Offloads{0, AllOffloads &^ TUNMultiqueue} {
		t.Run(offloads.String(), func(t *testing.T) { tunNoAllocations(t, offloads) })
	}
}

func tunNoAllocations(t *testing.T, offloads Offloads) {
	h := newHost(t)
	h.offloads = offloads
	d := h.open()
	h.sync(d)
	ping := packettest.IP(podB, h.subnet.Addr(), 1, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})
	in := carrier.Packet{Buf: append(make([]byte, encap.HeaderLen), ping...), At: encap.HeaderLen}
	var ip encap.IP
	if err := encap.ParseIP(ping, &ip); err != nil {
		t.Fatal(err)
	}
	var out *carrier.Packet
	var err error
	var c carrier.Counters
	flush, q := c.Publish, d.host.queues()[0]
	w := q.newWriter()
	n := testing.AllocsPerRun(100, func() {
		w.Write(&in, &ip, &c)
		w.Flush(&c)
		for {
			if out, err = q.Read(flush); err != nil {
				t.Fatal(err)
			}
			if b := out.IP(); len(b) == len(ping) && b[9] == 1 && b[20] == 0 { // not the host's own IPv6 chatter
				return
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per packet written and read", n)
	}
	h.run(d)
}

// TestPredecessorForwardsUntilSync: a vxlan device forwards while nobody knows what is wanted, and
// is back in its place if nobody ever does. Its MAC outlives it.
func TestPredecessorForwardsUntilSync(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	b.vxlan(true)
	a.vxlan(true)
	a.Run("ip", "link", "set", "flannel.1", "address", "0e:2a:00:00:00:01")
	a.vteps[0].MAC = encap.MAC{0x0e, 0x2a, 5: 1}
	before, vteps := a.Run("ip", "-br", "link"), a.vteps
	a.vxlanPeer(b)
	b.vxlanPeer(a)
	for _, sync := range []bool{false, true} {
		d := a.open()
		if got := d.VTEPs(); !slices.Equal(got, vteps) {
			t.Errorf("VTEPs %v, want %v", got, vteps)
		}
		stop := a.run(d)
		echo(t, a.pod, b.pod, b.podAddr())
		if sync {
			a.sync(d, b)
			a.requireSynced()
			echo(t, a.pod, b.pod, b.podAddr())
			continue
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if after := a.Run("ip", "-br", "link"); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}

// TestPredecessorForwardsAfterFailedSync: as long as another one keeps the port, nothing leads to the TUN device, and
// the status says why, whatever a look at the device finds.
func TestPredecessorForwardsAfterFailedSync(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	a.vxlan(true)
	b.vxlan(true)
	a.vxlanPeer(b)
	b.vxlanPeer(a)
	d := a.open()
	a.Run("ip", "link", "add", "other", "up", "type", "vxlan", "id", "9", "dstport", "8472")
	links, routes := a.Run("ip", "-br", "link"), a.Run("ip", "route")
	for range 2 {
		taken := new(udp.PortTakenError)
		if err := a.Do(func() error { _, err := d.Sync(t.Context(), a.wanted(b)); return err }); !errors.As(err, &taken) {
			t.Errorf("Sync: %v", err)
		}
		if err := d.repair(); err != nil {
			t.Error(err)
		}
		if got := a.Run("ip", "-br", "link") + a.Run("ip", "route"); got != links+routes {
			t.Errorf("was\n%s%sis\n%s", links, routes, got)
		}
		if s := d.Status(); s.State != dataplane.StateFailed || !strings.Contains(s.Err, "port 8472 is in use") {
			t.Errorf("status %+v", s)
		}
	}
	echo(t, a.pod, b.pod, b.podAddr())
	a.Run("ip", "link", "del", "other")
	a.sync(d, b)
	a.run(d)
	a.requireSynced()
	echo(t, a.pod, b.pod, b.podAddr())
}

// TestPlainQueueHoldsABurst has a device without vnet headers, and nobody who reads from it yet: more than TCP has under way waits.
func TestPlainQueueHoldsABurst(t *testing.T) {
	t.Parallel()
	h := newHosts(t, 1, testMTU)[0]
	h.offloads = AllOffloads &^ TUNVnet
	d := h.open()
	h.sync(d)
	defer d.Close()
	const burst = 3000
	var c net.Conn
	h.Must(func() (err error) { c, err = net.Dial("udp4", "10.42.9.9:9"); return err })
	defer c.Close()
	for range burst {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if s := h.link().Attrs().Statistics; s.TxDropped > 0 {
		t.Errorf("%d of %d packets dropped while nobody read", s.TxDropped, burst)
	}
}
