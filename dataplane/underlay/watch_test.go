package underlay

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

func TestOfInterest(t *testing.T) {
	message := func(kind uint16, dstLen byte) []byte {
		b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		b[unix.SizeofNlMsghdr+1] = dstLen
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want bool
	}{
		{"link", message(unix.RTM_NEWLINK, 24), true},
		{"default route", message(unix.RTM_DELROUTE, 0), true},
		{"route", message(unix.RTM_NEWROUTE, 24), false},
		{"route, then an address", append(message(unix.RTM_NEWROUTE, 24), message(unix.RTM_NEWADDR, 24)...), true},
		{"two routes", append(message(unix.RTM_NEWROUTE, 24), message(unix.RTM_NEWROUTE, 32)...), false},
		{"nothing", nil, false},
		{"bad length", binary.NativeEndian.AppendUint32(nil, 0), false},
	} {
		if got := ofInterest(tt.b); got != tt.want {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}
