package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func static(s string) address { return address{ip: ip(s), permanent: true} }

// machine is a host with something of everything.
func machine() host {
	return host{
		links: []link{
			{name: "lo", index: 1, mtu: 65536, up: true, loopback: true, addrs: []address{static("127.0.0.1"), static("203.0.113.9")}},
			{name: "eth0", index: 2, mtu: 1500, up: true, addrs: []address{static("192.0.2.10"), {ip: ip("192.0.2.11"), permanent: true, secondary: true}}},
			{name: "eth1", index: 3, mtu: 9000, up: true, addrs: []address{static("10.1.0.5")}},
			{name: "eth2", index: 4, mtu: 1500, addrs: []address{static("10.2.0.5")}},
			{name: "bare0", index: 5, mtu: 1500, up: true},
			{name: "flannel.1", index: 6, mtu: 1450, up: true, addrs: []address{static("10.244.3.0")}},
			{name: "odd0", index: 7, up: true, addrs: []address{static("10.7.0.1")}},
		},
		defaults: [2][]egress{{{index: 2}}},
		reachErr: errors.New("network is unreachable"),
	}
}

func TestChoose(t *testing.T) {
	reach := func(h *host, index int, src string) { h.reach, h.reachErr = egress{index, ip(src)}, nil }
	for _, tt := range []struct {
		name   string
		opts   Options
		change func(*host)
		want   string // name, address and published address, or the error's parts joined by |
	}{
		{name: "default route", want: "eth0 192.0.2.10 192.0.2.10"},
		{name: "default route with a source", change: func(h *host) { h.defaults[0][0].src = ip("192.0.2.11") }, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "default route with the source on the loopback", change: func(h *host) { h.defaults[0] = []egress{{5, ip("203.0.113.9")}} },
			want: "bare0 203.0.113.9 203.0.113.9"},
		{name: "default route with a foreign source", change: func(h *host) { h.defaults[0][0].src = ip("198.51.100.1") }, want: "eth0 192.0.2.10 192.0.2.10"},
		{name: "first default route of no use", change: func(h *host) { h.defaults[0] = []egress{{6, netip.Addr{}}, {5, netip.Addr{}}, {3, netip.Addr{}}} },
			want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "no default route", change: func(h *host) { h.defaults[0] = nil },
			want: "default route: the main table has none|eth0 192.0.2.10 192.0.2.11|lo 127.0.0.1|is the loopback|bare0 no address|eth2 10.2.0.5, down"},
		{name: "default route's interface gone", change: func(h *host) { h.defaults[0][0].index = 99 }, want: "interface number 99"},
		{name: "no interface", change: func(h *host) { h.links = nil }, want: "network namespace has no interface"},

		{name: "by name", opts: Options{Iface: []string{"eth1"}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "by name, down", opts: Options{Iface: []string{"eth2"}}, want: "eth2 10.2.0.5 10.2.0.5"},
		{name: "by address", opts: Options{Iface: []string{"192.0.2.11"}}, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "by address, mapped", opts: Options{Iface: []string{"::ffff:192.0.2.11"}}, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "first name that is there", opts: Options{Iface: []string{"eth9", "bare0", "10.9.9.9", "eth1", "eth0"}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "loopback by name", opts: Options{Iface: []string{"lo"}}, want: "lo 203.0.113.9 203.0.113.9"},
		{name: "loopback by address", opts: Options{Iface: []string{"127.0.0.1"}}, want: "--iface 127.0.0.1: no interface has this address for use|lo 127.0.0.1 loopback"},
		{name: "no fallback to the default route", opts: Options{Iface: []string{"eth9"}}, want: "--iface eth9: no such interface|eth0 192.0.2.10"},
		{name: "own device by name", opts: Options{Iface: []string{"flannel.1"}}, want: "--iface flannel.1|overlay device itself"},
		{name: "own device by address", opts: Options{Iface: []string{"10.244.3.0"}}, want: "--iface 10.244.3.0|overlay device itself"},
		{name: "no address", opts: Options{Iface: []string{"bare0"}}, want: "--iface bare0|no address"},
		{name: "no MTU", opts: Options{Iface: []string{"odd0"}}, want: "odd0: its MTU is 0"},

		{name: "regex on an address", opts: Options{IfaceRegex: []string{`^10\.1\.`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "regex on the second address", opts: Options{IfaceRegex: []string{`\.11$`}}, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "regex on a name", opts: Options{IfaceRegex: []string{`th1`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "regex on addresses before names", opts: Options{IfaceRegex: []string{`^eth0$|^10\.1\.`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "regex passes over loopback, own, down", opts: Options{IfaceRegex: []string{`^127|^10\.244|^10\.2|^flannel|eth1`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "first regex first", opts: Options{IfaceRegex: []string{`nothing`, `eth1`, `eth0`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "name before regex", opts: Options{Iface: []string{"eth0"}, IfaceRegex: []string{`eth1`}}, want: "eth0 192.0.2.10 192.0.2.10"},
		{name: "regex after names", opts: Options{Iface: []string{"eth9"}, IfaceRegex: []string{`eth1`}}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "no regex matches", opts: Options{IfaceRegex: []string{`^ens`, `^wlan`}}, want: "--iface-regex ^ens: matches no|--iface-regex ^wlan: matches no|looked at: lo"},

		{name: "can reach", opts: Options{CanReach: ip("10.1.0.1")}, change: func(h *host) { reach(h, 3, "10.1.0.5") }, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "can reach after regex", opts: Options{IfaceRegex: []string{"^x"}, CanReach: ip("10.1.0.1")},
			change: func(h *host) { reach(h, 3, "10.1.0.5") }, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "can reach itself", opts: Options{CanReach: ip("10.1.0.5")}, change: func(h *host) { reach(h, 1, "10.1.0.5") }, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "can reach the overlay", opts: Options{CanReach: ip("10.244.9.9")}, change: func(h *host) { reach(h, 6, "10.244.3.0") },
			want: "--iface-can-reach 10.244.9.9: flannel.1: is an overlay"},
		{name: "cannot reach", opts: Options{CanReach: ip("10.99.0.1")}, want: "--iface-can-reach 10.99.0.1: network is unreachable|looked at"},

		{name: "public address of an interface", opts: Options{PublicIP: ip("10.1.0.5")}, want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "public address behind NAT", opts: Options{PublicIP: ip("198.51.100.7")}, want: "eth0 192.0.2.10 198.51.100.7"},
		{name: "public address on the loopback", opts: Options{PublicIP: ip("203.0.113.9")}, want: "eth0 192.0.2.10 203.0.113.9"},
		{name: "public address and a name", opts: Options{PublicIP: ip("198.51.100.7"), Iface: []string{"eth1"}}, want: "eth1 10.1.0.5 198.51.100.7"},
		{name: "public address is the named one's second", opts: Options{PublicIP: ip("192.0.2.11"), Iface: []string{"eth0"}}, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "address asked for and another published", opts: Options{PublicIP: ip("192.0.2.11"), Iface: []string{"192.0.2.10"}}, want: "eth0 192.0.2.10 192.0.2.11"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := machine()
			if tt.change != nil {
				tt.change(&h)
			}
			c, err := tt.opts.criteria()
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.choose(h)
			if err != nil {
				wantParts(t, err, tt.want)
				return
			}
			if s := fmt.Sprint(got.Name, " ", got.IPv4.Local, " ", got.IPv4.Public); s != tt.want {
				t.Fatalf("chose %s, want %s", s, tt.want)
			}
			for _, l := range h.links {
				if l.name == got.Name && (l.index != got.Index || l.mtu != got.MTU || got.IPv6 != End{}) {
					t.Errorf("chose %+v", got)
				}
			}
		})
	}
}

// fields are the options' names, by those that a command could have for them.
var fields = strings.NewReplacer("--iface-can-reach", string(FieldCanReach), "--iface-regex", string(FieldIfaceRegex),
	"--iface", string(FieldIface), "--public-ipv6", string(FieldPublicIPv6), "--public-ip", string(FieldPublicIP))

// wantParts checks the parts of an error, in which fields stand for flags.
func wantParts(t *testing.T, err error, parts string) {
	t.Helper()
	for part := range strings.SplitSeq(fields.Replace(parts), "|") {
		if !strings.Contains(err.Error(), part) {
			t.Fatalf("error %q does not contain %q", err, part)
		}
	}
}

// TestKeepsItsDefaultRoute: a better default route moves no node whose interface still has one.
func TestKeepsItsDefaultRoute(t *testing.T) {
	eth0 := Interface{Name: "eth0", Index: 2, IPv4: End{Local: ip("192.0.2.10"), Public: ip("192.0.2.10")}}
	for _, tt := range []struct {
		name   string
		change func(*host)
		last   Interface
		want   string
	}{
		{"starts", func(*host) {}, Interface{}, "eth1"},
		{"runs", func(*host) {}, eth0, "eth0"},
		{"its route has gone", func(h *host) { h.defaults[0] = h.defaults[0][:1] }, eth0, "eth1"},
		{"its route is of the other family", func(h *host) { h.defaults = [2][]egress{h.defaults[0][:1], {{index: 2}}} }, eth0, "eth1"},
		{"it is down", func(h *host) { h.links[1].up = false }, eth0, "eth1"},
		{"it has no carrier", func(h *host) { h.links[1].carrier = false }, eth0, "eth1"},
		{"it has no address", func(h *host) { h.links[1].addrs = nil }, eth0, "eth1"},
	} {
		h := machine()
		h.defaults[0] = []egress{{index: 3}, {index: 2}}
		for i := range h.links {
			h.links[i].carrier = true
		}
		tt.change(&h)
		c, err := Options{IPv4: true}.criteria()
		if err != nil {
			t.Fatal(err)
		}
		c.last = tt.last
		if got, err := c.choose(h); err != nil || got.Name != tt.want {
			t.Errorf("%s: chose %+v, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}

func TestSelectErrorTellsWhetherAnInterfaceWasNamed(t *testing.T) {
	for _, o := range []Options{{}, {Iface: []string{"eth9"}}} {
		c, err := o.criteria()
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.choose(host{links: []link{{name: "lo", loopback: true}}})
		var s *SelectError
		if !errors.As(err, &s) || s.Unnamed != (len(o.Iface) == 0) || len(s.Tried) != 1 {
			t.Errorf("%+v: got %+v", o, err)
		}
	}
}

func TestErrorsUnwrap(t *testing.T) {
	reason := errors.New("reason")
	err := error(&SelectError{Tried: []*OptionError{{FieldIface, "eth9", reason}}})
	var o *OptionError
	if !errors.Is(err, reason) || !errors.As(err, &o) || o.Value != "eth9" {
		t.Errorf("got %v", err)
	}
}

func TestBestAddress(t *testing.T) {
	dynamic := func(s string) address { return address{ip: ip(s)} }
	for _, tt := range []struct {
		name   string
		addrs  []address
		want   string // empty: none
		family int
		keep   netip.Addr
	}{
		{name: "none"},
		{name: "first of equals", addrs: []address{static("10.0.0.2"), static("10.0.0.1")}, want: "10.0.0.2"},
		{name: "global before link-local", addrs: []address{static("169.254.1.1"), dynamic("10.0.0.1")}, want: "10.0.0.1"},
		{name: "link-local if there is nothing else", addrs: []address{static("169.254.1.1")}, want: "169.254.1.1"},
		{name: "permanent before dynamic", addrs: []address{dynamic("10.0.0.1"), static("10.0.0.2")}, want: "10.0.0.2"},
		{name: "primary before secondary", addrs: []address{{ip: ip("10.0.0.1"), secondary: true}, dynamic("10.0.0.2")}, want: "10.0.0.2"},
		{name: "permanent before primary", addrs: []address{dynamic("10.0.0.2"), {ip: ip("10.0.0.1"), permanent: true, secondary: true}}, want: "10.0.0.1"},
		{name: "deprecated if there is nothing else", addrs: []address{{ip: ip("10.0.0.1"), permanent: true, deprecated: true}}, want: "10.0.0.1"},
		{name: "link-local and temporary before deprecated", addrs: []address{{ip: ip("10.0.0.1"), permanent: true, deprecated: true}, {ip: ip("169.254.0.1"), secondary: true}}, want: "169.254.0.1"},
		{name: "of deprecated ones the one in use", addrs: []address{{ip: ip("fd00::2"), permanent: true, deprecated: true}, {ip: ip("fd00::1"), secondary: true, deprecated: true}},
			want: "fd00::1", family: 1, keep: ip("fd00::1")},
		{name: "multicast and unspecified never", addrs: []address{static("224.0.0.1"), static("0.0.0.0")}, want: ""},
		{name: "the other family's", addrs: []address{static("10.0.0.1"), static("fd00::1")}, want: "fd00::1", family: 1},
		{name: "permanent before temporary", addrs: []address{{ip: ip("fd00::2"), secondary: true}, dynamic("fd00::3"), static("fd00::1")}, want: "fd00::1", family: 1},
		{name: "autoconfigured before temporary", addrs: []address{{ip: ip("fd00::2"), secondary: true}, dynamic("fd00::3")}, want: "fd00::3", family: 1},
		{name: "link-local IPv6 never", addrs: []address{static("fe80::1")}, family: 1},
		{name: "duplicate never", addrs: []address{{ip: ip("fd00::2"), permanent: true, duplicate: true}}, family: 1},
		{name: "of equals the one in use", addrs: []address{static("fd00::2"), static("fd00::1")}, want: "fd00::1", family: 1, keep: ip("fd00::1")},
		{name: "that in use before a better one", addrs: []address{static("fd00::2"), dynamic("fd00::1")}, want: "fd00::1", family: 1, keep: ip("fd00::1")},
		{name: "not that in use, if it is deprecated", addrs: []address{dynamic("fd00::2"), {ip: ip("fd00::1"), permanent: true, deprecated: true}}, want: "fd00::2", family: 1, keep: ip("fd00::1")},
		{name: "not that in use, if it is link-local", addrs: []address{dynamic("192.0.2.2"), static("169.254.0.1")}, want: "192.0.2.2", keep: ip("169.254.0.1")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := link{addrs: tt.addrs}
			got := l.best(tt.family, tt.keep)
			if got.IsValid() != (tt.want != "") || (got.IsValid() && got != ip(tt.want)) {
				t.Fatalf("best is %v, want %q", got, tt.want)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		opts Options
		want string
	}{
		{Options{Iface: []string{"eth0", ""}}, `--iface ""|is empty`},
		{Options{Iface: []string{"a-name-of-16-byte"}}, `--iface "a-name-of-16-byte"|neither`},
		{Options{Iface: []string{"192.0.2.0/24"}}, `--iface "192.0.2.0/24"|neither`},
		{Options{Iface: []string{"fe80::1%eth0"}}, `--iface "fe80::1%eth0"|without a zone`},
		{Options{Iface: []string{"0.0.0.0"}}, `--iface "0.0.0.0"|not the address of one host`},
		{Options{IfaceRegex: []string{"("}}, `--iface-regex "("|missing closing )`},
		{Options{IfaceRegex: []string{""}}, `--iface-regex ""|is empty`},
		{Options{CanReach: ip("224.0.0.1")}, `--iface-can-reach 224.0.0.1|not the address of one host`},
		{Options{PublicIP: ip("255.255.255.255")}, `--public-ip 255.255.255.255|not the address of one host`},
		{Options{PublicIP: ip("fd00::1")}, `--public-ip fd00::1|want an IPv4 address`},
		{Options{PublicIPv6: ip("192.0.2.1")}, `--public-ipv6 192.0.2.1|want an IPv6 address`},
		{Options{PublicIPv6: ip("fe80::1")}, `--public-ipv6 fe80::1|link-local`},
	} {
		_, err := Select(t.Context(), tt.opts)
		if err == nil {
			t.Errorf("%+v was accepted", tt.opts)
			continue
		}
		wantParts(t, err, tt.want)
	}
}

func TestOverlayNames(t *testing.T) {
	for name, want := range map[string]bool{
		"flannel.1": true, "flannel-v6.4096": true, "flannel.": false, "flannel.x": false, "flannel": false, "flannel.1a": false, "eth0": false,
	} {
		if refused := (&link{name: name}).refusal(false) != nil; refused != want {
			t.Errorf("%s: want %t", name, want)
		}
	}
}

func TestMessageIsBounded(t *testing.T) {
	var h host
	for i := range 5000 {
		h.links = append(h.links, link{name: fmt.Sprint("veth", i)})
	}
	h.links = append(h.links, link{name: "eth0", up: true, addrs: []address{static("192.0.2.1")}})
	_, err := criteria{}.choose(h)
	if err == nil || len(err.Error()) > 4096 || !strings.Contains(err.Error(), "eth0 192.0.2.1") || !strings.Contains(err.Error(), "and more") {
		t.Fatalf("message of %d bytes: %.300v", len(err.Error()), err)
	}
}

// dualHost has both families on eth0, and one of them on eth4 and eth6.
func dualHost() host {
	return host{
		links: []link{
			{name: "eth0", index: 2, mtu: 1500, up: true, addrs: []address{static("192.0.2.10"), static("fe80::10"), static("2001:db8::10"), static("2001:db8::11")}},
			{name: "eth4", index: 4, mtu: 1500, up: true, addrs: []address{static("198.51.100.4"), static("fe80::4")}},
			{name: "eth6", index: 6, mtu: 1500, up: true, addrs: []address{static("2001:db8:6::6")}},
		},
		defaults: [2][]egress{{{index: 2}}, {{index: 2, src: ip("fe80::10")}}},
	}
}

func TestChooseFamilies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   Options
		change func(*host)
		want   string // name, IPv4 end, IPv6 end, or the error's parts joined by |
	}{
		{name: "default routes agree", want: "eth0 192.0.2.10 192.0.2.10 2001:db8::10 2001:db8::10"},
		{name: "source of the route", change: func(h *host) { h.defaults[1][0].src, h.defaults[0] = ip("2001:db8::11"), nil },
			want: "eth0 192.0.2.10 192.0.2.10 2001:db8::11 2001:db8::11"},
		{name: "default routes differ", change: func(h *host) { h.defaults[1] = []egress{{index: 6}} }, want: "that of IPv4 is on eth0|that of IPv6 on eth6"},
		{name: "default routes differ, one family", opts: Options{IPv4: true}, change: func(h *host) { h.defaults[1] = []egress{{index: 6}} },
			want: "eth0 192.0.2.10 192.0.2.10 2001:db8::10 2001:db8::10"},
		{name: "default routes differ, other family", opts: Options{IPv6: true}, change: func(h *host) { h.defaults[1] = []egress{{index: 6}} },
			want: "eth6 invalid IP invalid IP 2001:db8:6::6 2001:db8:6::6"},
		{name: "no IPv6 default route", change: func(h *host) { h.defaults[1] = nil }, want: "eth0 192.0.2.10 192.0.2.10 2001:db8::10 2001:db8::10"},
		{name: "only an IPv6 default route", opts: Options{IPv4: true}, change: func(h *host) { h.defaults = [2][]egress{nil, {{index: 6}}} },
			want: "eth6 invalid IP invalid IP 2001:db8:6::6 2001:db8:6::6"},
		{name: "link-local is no address", change: func(h *host) { h.defaults = [2][]egress{{{index: 4}}} }, want: "eth4 198.51.100.4 198.51.100.4 invalid IP invalid IP"},
		{name: "IPv6 address", opts: Options{Iface: []string{"2001:db8::11"}}, want: "eth0 192.0.2.10 192.0.2.10 2001:db8::11 2001:db8::11"},
		{name: "regex on an IPv6 address", opts: Options{IfaceRegex: []string{"^2001:db8::11"}}, want: "eth0 192.0.2.10 192.0.2.10 2001:db8::11 2001:db8::11"},
		{name: "regex not on a link-local address", opts: Options{IfaceRegex: []string{"^fe80"}}, want: "matches no address"},
		{name: "can reach", opts: Options{CanReach: ip("2001:db8:6::1")}, change: func(h *host) { h.reach = egress{6, ip("2001:db8:6::6")} },
			want: "eth6 invalid IP invalid IP 2001:db8:6::6 2001:db8:6::6"},
		{name: "public addresses behind NAT", opts: Options{PublicIP: ip("203.0.113.1"), PublicIPv6: ip("2001:db8:ff::1")},
			want: "eth0 192.0.2.10 203.0.113.1 2001:db8::10 2001:db8:ff::1"},
		{name: "own public IPv6 address", opts: Options{PublicIPv6: ip("2001:db8:6::6")}, want: "eth6 invalid IP invalid IP 2001:db8:6::6 2001:db8:6::6"},
		{name: "own public addresses apart", opts: Options{PublicIP: ip("198.51.100.4"), PublicIPv6: ip("2001:db8:6::6")}, want: "198.51.100.4 is on eth4|2001:db8:6::6 on eth6"},
		{name: "public address without a local one", opts: Options{Iface: []string{"eth6"}, PublicIP: ip("203.0.113.1")}, want: "eth6: has no IPv4 address|--public-ip 203.0.113.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := dualHost()
			if tt.change != nil {
				tt.change(&h)
			}
			if !tt.opts.IPv4 && !tt.opts.IPv6 {
				tt.opts.IPv4, tt.opts.IPv6 = true, true
			}
			c, err := tt.opts.criteria()
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.choose(h)
			if err != nil {
				wantParts(t, err, tt.want)
				return
			}
			if s := fmt.Sprint(got.Name, " ", got.IPv4.Local, " ", got.IPv4.Public, " ", got.IPv6.Local, " ", got.IPv6.Public); s != tt.want {
				t.Fatalf("chose %s, want %s", s, tt.want)
			}
		})
	}
}

// TestUnderlays: each family goes by its own underlay, and by the other if it has none.
func TestUnderlays(t *testing.T) {
	v4, v6 := End{ip("192.0.2.1"), ip("203.0.113.1")}, End{ip("2001:db8::1"), ip("2001:db8::1")}
	by4 := dataplane.Underlay{Link: 7, Local: v4.Local, Public: v4.Public}
	by6 := dataplane.Underlay{Link: 7, Local: v6.Local, Public: v6.Public}
	for _, tt := range []struct {
		has        Interface
		ipv4, ipv6 bool
		want       []dataplane.Underlay
	}{
		{Interface{IPv4: v4, IPv6: v6}, true, false, []dataplane.Underlay{by4}},
		{Interface{IPv4: v4, IPv6: v6}, false, true, []dataplane.Underlay{by6}},
		{Interface{IPv4: v4, IPv6: v6}, true, true, []dataplane.Underlay{by4, by6}},
		{Interface{IPv4: v4}, true, true, []dataplane.Underlay{by4}},
		{Interface{IPv4: v4}, false, true, []dataplane.Underlay{by4}},
		{Interface{IPv6: v6}, true, false, []dataplane.Underlay{by6}},
	} {
		tt.has.Index = 7
		if got := tt.has.Underlays(tt.ipv4, tt.ipv6); !slices.Equal(got, tt.want) {
			t.Errorf("%+v %t %t: got %v, want %v", tt.has, tt.ipv4, tt.ipv6, got, tt.want)
		}
	}
}
