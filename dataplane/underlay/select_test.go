package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
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
		defaults: []route{{index: 2}},
		reachErr: errors.New("network is unreachable"),
	}
}

func TestChoose(t *testing.T) {
	reach := func(h *host, index int, src string) { h.reach, h.reachErr = route{index, ip(src)}, nil }
	for _, tt := range []struct {
		name   string
		opts   Options
		change func(*host)
		want   string // name, address and published address, or the error's parts joined by |
	}{
		{name: "default route", want: "eth0 192.0.2.10 192.0.2.10"},
		{name: "default route with a source", change: func(h *host) { h.defaults[0].src = ip("192.0.2.11") }, want: "eth0 192.0.2.11 192.0.2.11"},
		{name: "default route with the source on the loopback", change: func(h *host) { h.defaults = []route{{5, ip("203.0.113.9")}} },
			want: "bare0 203.0.113.9 203.0.113.9"},
		{name: "default route with a foreign source", change: func(h *host) { h.defaults[0].src = ip("198.51.100.1") }, want: "eth0 192.0.2.10 192.0.2.10"},
		{name: "first default route of no use", change: func(h *host) { h.defaults = []route{{6, netip.Addr{}}, {5, netip.Addr{}}, {3, netip.Addr{}}} },
			want: "eth1 10.1.0.5 10.1.0.5"},
		{name: "no default route", change: func(h *host) { h.defaults = nil },
			want: "default route: there is none|eth0 192.0.2.10 192.0.2.11|lo 127.0.0.1|is the loopback|bare0 no IPv4|eth2 10.2.0.5, down|--iface-can-reach"},
		{name: "default route's interface gone", change: func(h *host) { h.defaults[0].index = 99 }, want: "interface number 99"},
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
		{name: "no address", opts: Options{Iface: []string{"bare0"}}, want: "--iface bare0|no IPv4 address"},
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
			if s := fmt.Sprint(got.Name, " ", got.Addr, " ", got.Public); s != tt.want {
				t.Fatalf("chose %s, want %s", s, tt.want)
			}
			for _, l := range h.links {
				if l.name == got.Name && (l.index != got.Index || l.mtu != got.MTU || got.Addr6.IsValid()) {
					t.Errorf("chose %+v", got)
				}
			}
		})
	}
}

func wantParts(t *testing.T, err error, parts string) {
	t.Helper()
	for part := range strings.SplitSeq(parts, "|") {
		if !strings.Contains(err.Error(), part) {
			t.Fatalf("error %q does not say %q", err, part)
		}
	}
}

func TestBestAddress(t *testing.T) {
	dynamic := func(s string) address { return address{ip: ip(s)} }
	for _, tt := range []struct {
		name  string
		addrs []address
		want  string // empty: none
	}{
		{"none", nil, ""},
		{"first of equals", []address{static("10.0.0.2"), static("10.0.0.1")}, "10.0.0.2"},
		{"global before link-local", []address{static("169.254.1.1"), dynamic("10.0.0.1")}, "10.0.0.1"},
		{"link-local where there is nothing else", []address{static("169.254.1.1")}, "169.254.1.1"},
		{"permanent before dynamic", []address{dynamic("10.0.0.1"), static("10.0.0.2")}, "10.0.0.2"},
		{"primary before secondary", []address{{ip: ip("10.0.0.1"), secondary: true}, dynamic("10.0.0.2")}, "10.0.0.2"},
		{"permanent before primary", []address{dynamic("10.0.0.2"), {ip: ip("10.0.0.1"), permanent: true, secondary: true}}, "10.0.0.1"},
		{"deprecated never", []address{{ip: ip("10.0.0.1"), permanent: true, deprecated: true}}, ""},
		{"multicast and unspecified never", []address{static("224.0.0.1"), static("0.0.0.0")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := link{addrs: tt.addrs}
			got, ok := l.best()
			if ok != (tt.want != "") || (ok && got != ip(tt.want)) {
				t.Fatalf("best is %v, %t, want %q", got, ok, tt.want)
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
		{Options{Iface: []string{"fd00::1"}}, `--iface "fd00::1"|want an IPv4 address`},
		{Options{Iface: []string{"0.0.0.0"}}, `--iface "0.0.0.0"|not the address of one host`},
		{Options{IfaceRegex: []string{"("}}, `--iface-regex "("|missing closing )`},
		{Options{IfaceRegex: []string{""}}, `--iface-regex ""|is empty`},
		{Options{CanReach: ip("fd00::1")}, `--iface-can-reach fd00::1|want an IPv4 address`},
		{Options{CanReach: ip("224.0.0.1")}, `--iface-can-reach 224.0.0.1|not the address of one host`},
		{Options{PublicIP: ip("255.255.255.255")}, `--public-ip 255.255.255.255|not the address of one host`},
		{Options{PublicIP: ip("fd00::1")}, `--public-ip fd00::1|want an IPv4 address`},
	} {
		_, err := Select(tt.opts)
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
		if isOverlayName(name) != want {
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
