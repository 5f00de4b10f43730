package fit

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestNeeds: each address that a host needs is named once, by its most important use.
func TestNeeds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# nameserver 192.0.2.9\nsearch example\nnameserver 192.0.2.53\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver 192.0.2.1\nnameserver\nnameserver x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	i := underlay.Interface{IPv4: underlay.End{Local: netip.MustParseAddr("192.0.2.2"), Public: netip.MustParseAddr("203.0.113.2")}, IPv6: underlay.End{Local: netip.MustParseAddr("2001:db8::2"), Public: netip.MustParseAddr("2001:db8::2")}}
	routes := underlay.Needs{Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	routes.Links, routes.Locals = []underlay.Link{{Prefix: netip.MustParsePrefix("10.5.50.0/24"), Name: "br0"}}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	route := netip.MustParsePrefix("192.0.2.0/29")
	routes.Ways = []underlay.Way{1: {Route: route, Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}}
	stores := AddressesOf(t.Context(), []string{"192.0.2.7", "::1", "::ffff:192.0.2.8", "no such host."})
	var got []string
	u := needsOf(i, routes, stores, nameServers(file))
	for _, n := range u.Needs {
		text := n.String()
		if n.Yields {
			text += " (yields)"
		}
		got = append(got, text)
	}
	want := []string{
		"192.0.2.2, the underlay address of this host", "2001:db8::2, the underlay address of this host",
		"203.0.113.2, the public IP of this host", "192.0.2.1, the default gateway of this host",
		"192.0.2.7, an address of the store", "192.0.2.8, an address of the store", "192.0.2.3, the next hop to an address of the store",
		"192.0.2.53, a name server of this host", "fe80::1, a name server of this host",
		"169.254.169.254, the metadata service of clouds (yields)",
	}
	if !slices.Equal(got, want) || !slices.Equal(u.OnLink, routes.OnLink) {
		t.Errorf("needs %q\nwant  %q; on link %v", got, want, u.OnLink)
	}
	if i := slices.IndexFunc(u.Needs, func(n control.Need) bool { return n.Addr == stores[1] }); i < 0 || u.Needs[i].Route != route {
		t.Errorf("needs %+v, want %s by %s", u.Needs, stores[1], route)
	}
	if want := []control.Link{{Prefix: netip.MustParsePrefix("10.5.50.0/24"), Name: "br0"}}; !slices.Equal(u.Links, want) || !slices.Equal(u.Locals, routes.Locals) {
		t.Errorf("links %v, local addresses %v", u.Links, u.Locals)
	}
	if got := nameServers(file + "x"); got != nil {
		t.Errorf("of no file: %v", got)
	}
}

// TestWatchNeeds: another default gateway and another prefix on the link are noticed at once, the overlay's own routes
// are not; another address of a store that does not answer is noticed soon.
func TestWatchNeeds(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", ns)
	var iface underlay.Interface
	moved := netip.MustParseAddr("10.7.0.7")
	var remote atomic.Pointer[netip.Addr] // of a store that has stopped answering
	store := Store{Answers: func() bool { return false }, Remotes: func() (all []netip.Addr) {
		if a := remote.Load(); a != nil {
			all = append(all, *a)
		}
		return all
	}}
	changes, ended := make(chan control.Underlay, 10), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	began := make(chan struct{})
	go func() {
		ended <- ns.Do(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			iface.Index = l.Attrs().Index
			now, err := Needs(ctx, iface, store)
			close(began)
			if err != nil {
				return err
			}
			return WatchNeeds(ctx, iface, store, now, func(u control.Underlay) { changes <- u })
		})
	}()
	<-began
	for _, c := range []struct {
		command string
		want    func(u control.Underlay) bool
	}{
		{"route replace default via 192.0.2.9", func(u control.Underlay) bool { return u.Needs[0].Addr == netip.MustParseAddr("192.0.2.9") }},
		{"route add 10.5.7.0/24 dev eth0 proto static", func(u control.Underlay) bool {
			return slices.Contains(u.OnLink, netip.MustParsePrefix("10.5.7.0/24"))
		}},
		{"route del 10.5.7.0/24 dev eth0", func(u control.Underlay) bool { return len(u.OnLink) == 1 }},
	} {
		ns.Run("ip", strings.Fields("route add 10.6.0.0/24 dev eth0 proto 211")...)
		ns.Run("ip", strings.Fields("route del 10.6.0.0/24 dev eth0 proto 211")...)
		ns.Run("ip", strings.Fields(c.command)...)
		select {
		case u := <-changes:
			if !c.want(u) {
				t.Errorf("%s: needs %v, on link %v", c.command, u.Needs, u.OnLink)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not noticed", c.command)
		}
	}
	remote.Store(&moved)
	select {
	case u := <-changes:
		if !slices.ContainsFunc(u.Needs, func(n control.Need) bool { return n.Addr == moved }) {
			t.Errorf("needs %v, want %s", u.Needs, moved)
		}
	case <-time.After(10 * time.Second):
		t.Error("another address of the store: not noticed")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
