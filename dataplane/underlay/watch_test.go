package underlay

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
