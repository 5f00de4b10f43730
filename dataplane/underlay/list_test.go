package underlay

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// twoNICs is a host with eth0 (192.0.2.2/24, default route) and eth1 (198.51.100.2/24).
func twoNICs(t *testing.T) *netnstest.NS {
	h := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", h)
	other := netnstest.New(t)
	netnstest.Link(other, "eth0", h, "eth1")
	h.Addr("eth1", "198.51.100.2/24")
	return h
}

func selectIn(h *netnstest.NS, o Options) (got Interface, err error) {
	err = h.Do(func() (err error) { got, err = Select(context.Background(), o); return err })
	return got, err
}

func TestSelectInNamespace(t *testing.T) {
	h := twoNICs(t)
	for _, tt := range []struct {
		name string
		opts Options
		want Interface // without the index
	}{
		{"default route", Options{}, Interface{Name: "eth0", MTU: 1500, IPv4: End{ip("192.0.2.2"), ip("192.0.2.2")}}},
		{"name", Options{Iface: []string{"eth1"}}, Interface{Name: "eth1", MTU: 1500, IPv4: End{ip("198.51.100.2"), ip("198.51.100.2")}}},
		{"regex", Options{IfaceRegex: []string{"^198"}}, Interface{Name: "eth1", MTU: 1500, IPv4: End{ip("198.51.100.2"), ip("198.51.100.2")}}},
		{"can reach", Options{CanReach: ip("198.51.100.77")}, Interface{Name: "eth1", MTU: 1500, IPv4: End{ip("198.51.100.2"), ip("198.51.100.2")}}},
		{"can reach itself", Options{CanReach: ip("198.51.100.2")}, Interface{Name: "eth1", MTU: 1500, IPv4: End{ip("198.51.100.2"), ip("198.51.100.2")}}},
		{"own public address", Options{PublicIP: ip("198.51.100.2")}, Interface{Name: "eth1", MTU: 1500, IPv4: End{ip("198.51.100.2"), ip("198.51.100.2")}}},
		{"NAT", Options{PublicIP: ip("203.0.113.1")}, Interface{Name: "eth0", MTU: 1500, IPv4: End{ip("192.0.2.2"), ip("203.0.113.1")}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := selectIn(h, tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Index = got.Index
			if got != tt.want || got.Index == 0 {
				t.Fatalf("selected %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestSelectLoopback: no other host can send to 127.0.0.1, whoever asks for it.
func TestSelectLoopback(t *testing.T) {
	_, err := selectIn(twoNICs(t), Options{Iface: []string{"lo"}})
	if err == nil {
		t.Fatal("chose the loopback")
	}
	wantParts(t, err, "--iface lo|127.0.0.1 loopback")
}

func TestSelectUnreachable(t *testing.T) {
	h := netnstest.New(t)
	_, err := selectIn(h, Options{CanReach: ip("192.0.2.1")})
	if err == nil {
		t.Fatal("selected an interface")
	}
	wantParts(t, err, "--iface-can-reach 192.0.2.1: get route: network is unreachable|lo 127.0.0.1 loopback ::1 loopback, is the loopback")
	if _, err = selectIn(h, Options{}); err == nil {
		t.Fatal("selected an interface")
	}
	wantParts(t, err, "default route: the main table has none")
}

// The lowest metric decides, routes that only look like a default do not, and
// neither does one in another table.
func TestSelectLowestMetric(t *testing.T) {
	h := twoNICs(t)
	h.Must(func() error {
		eth1, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		gw := net.IPv4(198, 51, 100, 1)
		everything := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		half := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(1, 32)}
		for _, r := range []*netlink.Route{
			{LinkIndex: eth1.Attrs().Index, Gw: gw, Dst: half},
			{LinkIndex: eth1.Attrs().Index, Gw: gw, Table: 100},
			{LinkIndex: eth1.Attrs().Index, Gw: gw, Priority: 50},
			{Dst: everything, Type: unix.RTN_UNREACHABLE, Priority: 5},
		} {
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return nil
	})
	got, err := selectIn(h, Options{})
	if err != nil || got.Name != "eth0" {
		t.Fatalf("selected %+v, %v; want eth0, of metric 0", got, err)
	}
	h.Must(func() error { return netlink.RouteDel(&netlink.Route{Gw: net.IPv4(192, 0, 2, 1)}) })
	got, err = selectIn(h, Options{})
	if err != nil || got.Name != "eth1" {
		t.Fatalf("selected %+v, %v; want eth1, of metric 50", got, err)
	}
}

func TestSelectMultipathDefault(t *testing.T) {
	h := twoNICs(t)
	h.Must(func() error {
		var hops []*netlink.NexthopInfo
		l, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		for _, gw := range []string{"198.51.100.1", "198.51.100.3"} {
			hops = append(hops, &netlink.NexthopInfo{LinkIndex: l.Attrs().Index, Gw: ip(gw).AsSlice()})
		}
		if err := netlink.RouteDel(&netlink.Route{Gw: net.IPv4(192, 0, 2, 1)}); err != nil {
			return err
		}
		everything := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		return netlink.RouteAdd(&netlink.Route{Dst: everything, MultiPath: hops})
	})
	if got, err := selectIn(h, Options{}); err != nil || got.Name != "eth1" {
		t.Fatalf("selected %+v, %v; want eth1", got, err)
	}
}

// Address order comes from the kernel's flags: a deprecated one (preferred
// lifetime over) is taken only if it is asked for or if there is no other, a dynamic one after a permanent one.
func TestSelectReadsAddressFlags(t *testing.T) {
	h := netnstest.New(t)
	netnstest.Link(netnstest.New(t), "eth0", h, "eth0")
	h.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		add := func(s string, valid, preferred int) error {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				return err
			}
			a.ValidLft, a.PreferedLft = valid, preferred
			return netlink.AddrAdd(l, a)
		}
		return errors.Join(add("10.0.1.1/24", 600, 0), add("10.0.2.1/24", 600, 500), add("169.254.7.7/16", 0, 0), add("10.0.3.1/24", 0, 0), add("10.0.3.2/24", 0, 0))
	})
	got, err := selectIn(h, Options{Iface: []string{"eth0"}})
	if err != nil || got.IPv4.Local != ip("10.0.3.1") {
		t.Fatalf("selected %+v, %v; want 10.0.3.1", got, err)
	}
	if got, err := selectIn(h, Options{Iface: []string{"10.0.1.1"}}); err != nil || got.IPv4.Local != ip("10.0.1.1") {
		t.Fatalf("selected %+v, %v; want 10.0.1.1", got, err)
	}
}

// TestSelectDeprecated: a host all of whose addresses are deprecated, as when the router said so, starts; the interface of the other
// family is still chosen before such a one.
func TestSelectDeprecated(t *testing.T) {
	h := twoNICs(t)
	h.Run("sh", "-ec", "ip addr add 2001:db8::1/64 dev eth1 nodad valid_lft 600 preferred_lft 0; ip -6 route add default via 2001:db8::ff dev eth1")
	got, err := selectIn(h, Options{IPv6: true})
	if err != nil || got.Name != "eth1" || got.IPv6.Local != ip("2001:db8::1") {
		t.Errorf("selected %+v, %v; want eth1 with 2001:db8::1", got, err)
	}
	if got, err := selectIn(h, Options{IPv4: true, IPv6: true}); err != nil || got.Name != "eth0" {
		t.Errorf("selected %+v, %v; want eth0", got, err)
	}
}

func TestDumpIsRepeated(t *testing.T) {
	calls := 0
	got, err := dump(func() ([]int, error) {
		if calls++; calls < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(got) != 2 || calls != 3 {
		t.Fatalf("got %v, %v after %d calls", got, err, calls)
	}
	if _, err := dump(func() ([]int, error) { return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatalf("got %v", err)
	}
}

// TestSelectDualStack: an IPv6 address that was added a moment ago is waited for, and the
// kernel's IPv6 routes are read.
func TestSelectDualStack(t *testing.T) {
	h := twoNICs(t)
	h.Must(func() error { // not h.Addr: tentative, because the kernel looks for a duplicate
		if err := rtnl.SetSysctl("net/ipv6/conf/eth0/accept_dad", "1"); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("2001:db8::2/64")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	})
	h.DefaultRoute("2001:db8::1")
	h.Must(func() error {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if _, err := Select(ended, Options{}); !errors.Is(err, context.Canceled) && time.Since(began) > 500*time.Millisecond {
			t.Errorf("waited for %s after ctx had ended: %v", time.Since(began), err)
		}
		return nil
	})
	got, err := selectIn(h, Options{IPv4: true, IPv6: true})
	want := Interface{Name: "eth0", Index: got.Index, MTU: 1500, IPv4: End{ip("192.0.2.2"), ip("192.0.2.2")}, IPv6: End{ip("2001:db8::2"), ip("2001:db8::2")}}
	if err != nil || got != want {
		t.Fatalf("selected %+v, %v; want %+v", got, err, want)
	}
	h.Must(func() error {
		c, err := net.ListenPacket("udp6", "[2001:db8::2]:8472")
		if err == nil {
			c.Close()
		}
		return err
	})
	got, err = selectIn(h, Options{CanReach: ip("2001:db8::1")})
	if err != nil || got != want {
		t.Fatalf("selected %+v, %v; want %+v", got, err, want)
	}
}

// TestMTUOfAnAddressOnNoLink: what has an address of the loopback leaves by other links, and their MTU counts, as the routes come and go.
func TestMTUOfAnAddressOnNoLink(t *testing.T) {
	h := twoNICs(t)
	h.Run("sh", "-ec", `ip addr add 203.0.113.9/32 dev lo
		ip link set eth0 mtu 1400; ip link set eth1 mtu 1300; ip route del default
		ip link add flannel.1 mtu 1200 up type bridge; ip route add 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink`)
	for _, tt := range []struct {
		routes string // what of them changes, as a command
		want   int
	}{
		{"true", 1500},
		{"ip route add 203.0.113.11 via 192.0.2.1", 1400},
		{"ip route add 203.0.113.12 nexthop via 192.0.2.1 nexthop via 198.51.100.1", 1300},
		{"ip route add default via 192.0.2.1", 1400},
		{"ip link set eth0 mtu 1350", 1350},
		{"ip route append default via 198.51.100.1 metric 9", 1300},
		{"ip route flush default; ip -6 route add default via fe80::1 dev eth0", 1300}, // it has no address of that family
	} {
		h.Run("sh", "-ec", tt.routes)
		for _, o := range []Options{{Iface: []string{"203.0.113.9"}}, {Iface: []string{"lo"}, PublicIP: ip("203.0.113.9")}} {
			if got, err := selectIn(h, o); err != nil || got.MTU != tt.want {
				t.Errorf("%s: %v has MTU %d, %v; want %d", tt.routes, o.Iface, got.MTU, err, tt.want)
			}
		}
	}
}
