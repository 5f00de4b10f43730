package underlay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// TestWatch: a changed MTU and a changed address are told, another address beside the
// one in use and a pulled cable are not.
func TestWatch(t *testing.T) {
	h := twoNICs(t)
	o := Options{Iface: []string{"eth0"}}
	now, err := selectIn(h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan Interface, 10), make(chan error, 1)
	go func() {
		done <- h.Do(func() error { return Watch(ctx, o, now, func(i Interface) { told <- i }) })
	}()
	expect := func(what string, ok func(Interface) bool) {
		t.Helper()
		select {
		case got := <-told:
			if !ok(got) {
				t.Errorf("%s: told %+v", what, got)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: not told", what)
		}
	}
	change := func(f func(eth0 netlink.Link) error) {
		h.Must(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return f(l)
		})
	}
	mtu := func(n int) { change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, n) }) }
	mtu(1400)
	expect("MTU", func(i Interface) bool { return i.MTU == 1400 && i.IPv4 == now.IPv4 })
	h.Addr("eth0", "192.0.2.200/24")
	change(netlink.LinkSetDown)
	change(netlink.LinkSetUp)
	mtu(1300)
	expect("MTU after what is not told", func(i Interface) bool { return i.MTU == 1300 && i.IPv4 == now.IPv4 })
	change(func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: now.IPv4.Local.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
	h.Addr("eth0", "192.0.2.201/24")
	expect("address", func(i Interface) bool { return i.IPv4.Local.IsValid() && i.IPv4.Local != now.IPv4.Local })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWatchDefaultRoute: a default route that is gone for a moment moves nothing, one that stays away does, and an
// interface that cannot be used any more is left at once.
func TestWatchDefaultRoute(t *testing.T) {
	h := twoNICs(t)
	h.Run("ip", "route", "add", "default", "via", "198.51.100.1", "dev", "eth1", "metric", "200")
	h.Run("ip", "route", "replace", "default", "via", "192.0.2.1", "dev", "eth0", "metric", "100")
	h.Run("sh", "-c", "ip route del default metric 0 2>/dev/null; true")
	now, err := selectIn(h, Options{})
	if err != nil || now.Name != "eth0" {
		t.Fatalf("%+v, %v", now, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan Interface, 10), make(chan error, 1)
	go func() {
		done <- h.Do(func() error { return Watch(ctx, Options{}, now, func(i Interface) { told <- i }) })
	}()
	expect := func(what, name string, from, to time.Duration) {
		t.Helper()
		start := time.Now()
		select {
		case got := <-told:
			if got.Name != name || time.Since(start) < from {
				t.Errorf("%s: told %+v after %s", what, got, time.Since(start))
			}
		case <-time.After(to):
			if name != "" {
				t.Errorf("%s: not told", what)
			}
		}
	}
	away := []string{"route", "del", "default", "via", "192.0.2.1", "dev", "eth0", "metric", "100"}
	back := append([]string{"route", "add"}, away[2:]...)
	h.Run("ip", away...)
	expect("a moment without its default route", "", 0, 4*settle)
	h.Run("ip", back...)
	expect("default route is back", "", 0, 2*settle)
	h.Run("ip", away...)
	expect("default route stays away", "eth1", patience, 10*patience)
	h.Run("ip", back...)
	h.Run("ip", "link", "set", "eth1", "down")
	expect("interface is down", "eth0", 0, patience-time.Second)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConcerns(t *testing.T) {
	for _, tt := range []struct {
		name string
		kind uint16
		body []byte
		want bool
	}{
		{"link", unix.RTM_NEWLINK, []byte{0, 24}, true},
		{"address", unix.RTM_NEWADDR, []byte{unix.AF_INET, 24}, true},
		{"default route", unix.RTM_DELROUTE, []byte{unix.AF_INET, 0}, true},
		{"route", unix.RTM_NEWROUTE, []byte{unix.AF_INET, 24}, false},
		{"deleted route", unix.RTM_DELROUTE, []byte{unix.AF_INET, 32}, false},
		{"short route", unix.RTM_NEWROUTE, nil, true},
	} {
		if got := concerns(unix.NlMsghdr{Type: tt.kind}, tt.body); got != tt.want {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}

// A watcher that can no longer hear the kernel says so, and does not go on deaf.
func TestWatchReturnsTheErrorOfItsSocket(t *testing.T) {
	s, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rc, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	unconnected, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unconnected)
	rc.Control(func(fd uintptr) { err = unix.Dup3(unconnected, int(fd), unix.O_CLOEXEC) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := follow(ctx, s, Options{}, Interface{}, func(Interface) {}); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("got %v", err)
	}
}

// TestHealth: each fault of the interface is told once, with what to do, and that it is over; an address that is replaced is
// none, nor is another interface.
func TestHealth(t *testing.T) {
	h, far := netnstest.New(t), netnstest.New(t)
	for _, name := range []string{"eth0", "eth1"} {
		netnstest.Link(far, name, h, name)
	}
	h.Run("ip", "link", "add", "br0", "up", "type", "bridge")
	const addr = "192.0.2.2"
	h.Addr("eth0", addr+"/24")
	now, err := selectIn(h, Options{Iface: []string{"eth0"}})
	if err != nil {
		t.Fatal(err)
	}
	var log netnstest.Log
	health := NewHealth(slog.New(slog.NewTextHandler(&log, nil)), false)
	carries := func(i Interface) {
		h.Must(func() error { health.Carries(i, i.Underlays(true, false)); return nil })
	}
	carries(now)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Do(func() error { return health.Run(ctx) }) }()
	await := func(what, line string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); log.Count(line) != 1; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %q is not logged once:\n%s", what, line, log.String())
			}
		}
	}
	for _, c := range []struct {
		name, breaks, mends string // commands of ip
		in                  *netnstest.NS
		text, fix           string
	}{
		{"down", "link set eth0 down", "link set eth0 up", h, "eth0 is down", "ip link set eth0 up"},
		{"port of a bridge", "link set eth0 master br0", "link set eth0 nomaster", h, "eth0 is a port of the bridge br0", "--iface br0"},
		{"carrier", "link set eth0 down", "link set eth0 up", far, "eth0 has no carrier", "cable"},
		{"address", "addr del " + addr + "/24 dev eth0", "addr add " + addr + "/24 dev eth0", h, "eth0 has lost its address " + addr, "ip addr add " + addr},
	} {
		c.in.Run("ip", strings.Fields(c.breaks)...)
		await(c.name, `level=WARN msg="the underlay interface `+c.text)
		if all := health.Warnings(); len(all) != 1 || all[0].ID != dataplane.WarnUnderlay || !strings.Contains(all[0].Fix, c.fix) || all[0].Since.IsZero() {
			t.Errorf("%s: %+v", c.name, all)
		}
		c.in.Run("ip", strings.Fields(c.mends)...)
		await(c.name, `level=INFO msg="resolved: the underlay interface `+c.text)
	}
	if all := health.Warnings(); len(all) != 0 {
		t.Errorf("after all faults: %+v", all)
	}
	h.Run("sh", "-ec", "ip link set eth1 down; ip addr del "+addr+"/24 dev eth0; ip addr add "+addr+"/24 dev eth0")
	h.Run("ip", "link", "del", "eth0")
	await("gone", `level=WARN msg="the underlay interface eth0 is gone`)
	carries(Interface{Name: "lo", Index: 1})
	await("another one", `level=INFO msg="resolved: the underlay interface eth0 is gone`)
	if log.Count("has lost its address") != 2 || log.Count("eth1") != 0 { // the beginning and the end of the fault
		t.Errorf("more is told than the faults:\n%s", log.String())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
