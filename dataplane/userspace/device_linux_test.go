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

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// link returns the overlay device of h, or nil.
func (h *host) link() (l netlink.Link) {
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
func (h *host) state(l netlink.Link) (addrs, routes []netip.Prefix) {
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

func (h *host) requireSynced() netlink.Link {
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

func newHost(tb testing.TB) *host { return newHosts(tb, 1, testMTU)[0] }

func TestDeviceDownBeforeFirstSync(t *testing.T) {
	h := newHost(t)
	h.run(h.open())
	l := h.link()
	addrs, routes := h.state(l)
	if l.Attrs().Flags&net.FlagUp != 0 || len(addrs)+len(routes) > 0 {
		t.Errorf("before Sync: flags %v, addresses %v, routes %v", l.Attrs().Flags, addrs, routes)
	}
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
	tests := map[string]func(h *host){
		"kernel dataplane": func(h *host) { h.vxlan(true) },
		"multi-queue TUN": func(h *host) {
			h.Must(func() error {
				tun := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TUN, Queues: 2}
				tun.Name = "flannel.1"
				err := netlink.LinkAdd(tun)
				for _, fd := range tun.Fds {
					fd.Close()
				}
				return err
			})
		},
	}
	for name, inTheWay := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			inTheWay(h)
			old := h.link().Attrs().Index
			d := h.open()
			h.sync(d)
			h.run(d)
			if l := h.requireSynced(); l.Attrs().Index == old || l.Type() != "tun" && l.Type() != "tuntap" {
				t.Errorf("device is the %s with index %d, the old one had %d", l.Type(), l.Attrs().Index, old)
			}
		})
	}
}

func TestOpenRefused(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, h *host)
		thread  func() error // on the thread of Open
		is      error
		says    string
	}{
		"busy": {
			prepare: func(t *testing.T, h *host) { h.run(h.open()) },
			is:      ErrDeviceBusy, says: "another overlayd",
		},
		"port in use": {
			prepare: func(t *testing.T, h *host) {
				h.Must(func() error {
					c, err := net.ListenPacket("udp4", ":8472")
					t.Cleanup(func() { c.Close() })
					return err
				})
			},
			is: unix.EADDRINUSE, says: "ss -lunp 'sport = :8472'",
		},
		"foreign device": {
			prepare: func(t *testing.T, h *host) { netnstest.Link(h.NS, "flannel.1", h.pod, "peer") },
			says:    "type veth",
		},
		"local address missing": {
			prepare: func(t *testing.T, h *host) { h.addr = netip.MustParseAddr("198.51.100.1") },
			is:      unix.EADDRNOTAVAIL, says: "198.51.100.1",
		},
		"no capability": {
			thread: dropNetAdmin,
			is:     ErrPermission, says: "--cap-add NET_ADMIN",
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

func TestEnsureNode(t *testing.T) {
	netnstest.RequireRoot(t)
	path := filepath.Join(t.TempDir(), "net", "tun")
	for range 2 {
		if err := ensureNode(path); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 200) {
		t.Errorf("mode %o, device %d, %v", st.Mode, st.Rdev, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := ensureNode(filepath.Join(file, "tun"))
	if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, ErrNoTUN) {
		// A path that cannot be looked at is left to the open, which says more.
		if err != nil {
			t.Errorf("below a file: %v", err)
		}
	}
}

func TestRunStopsWithin100ms(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	stop := h.run(d)
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("Run took %v to stop", took)
	}
}

func TestRunStopsUnderTraffic(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	d := a.open()
	b.vxlan(true)
	a.sync(d, b)
	b.vxlanPeer(a)
	stop := a.run(d)
	done := make(chan struct{})
	var flooders [2]net.Conn
	a.pod.Must(func() (err error) { flooders[0], err = net.Dial("udp", b.podAddr().String()+":9"); return err })
	b.pod.Must(func() (err error) { flooders[1], err = net.Dial("udp", a.podAddr().String()+":9"); return err })
	for _, c := range flooders {
		go func() {
			for range 1 << 30 {
				if _, err := c.Write(make([]byte, 1000)); errors.Is(err, net.ErrClosed) {
					break
				}
			}
			done <- struct{}{}
		}()
	}
	eventually(t, "traffic both ways", func() bool { s := d.Stats(); return s.RxPackets > 1000 && s.TxPackets > 1000 })
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("Run took %v to stop", took)
	}
	for _, c := range flooders {
		c.Close()
		<-done
	}
}

func TestRunEndsWhenDeviceIsDeleted(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	done := make(chan error, 1)
	go func() { done <- d.Run(t.Context()) }()
	l := h.link()
	h.Must(func() error { return netlink.LinkDel(l) })
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "flannel.1 deleted?") {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Run goes on without its device")
	}
	if err := d.Sync(t.Context(), h.wanted()); !errors.Is(err, errClosed) {
		t.Errorf("Sync after Run: %v", err)
	}
	d.Stats()
	h.sync(h.open()) // the way back is Open
	h.requireSynced()
}

// TestTUNNoAllocations lets the kernel answer pings through the device.
func TestTUNNoAllocations(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	ping := ipPacket(podB, h.subnet.Addr(), 1, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})
	in := packet{buf: append(make([]byte, headroom), ping...)}
	var out packet
	var c counters
	idle := c.publish
	n := testing.AllocsPerRun(100, func() {
		d.queue.Write(&in, &c)
		for {
			if err := d.queue.Read(&out, idle); err != nil {
				t.Fatal(err)
			}
			if b := out.ip(); len(b) == len(ping) && b[9] == 1 && b[20] == 0 { // not the host's own IPv6 chatter
				return
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per packet written and read", n)
	}
	h.run(d)
}
