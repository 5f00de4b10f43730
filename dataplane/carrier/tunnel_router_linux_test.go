package carrier

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestTunnelLeavesDeadRouter has two default routers, the first of which dies. The kernel finds that out by its neighbour entry, and changes no route.
func TestTunnelLeavesDeadRouter(t *testing.T) {
	t.Parallel()
	for family, tt := range map[string]struct{ prefix, local, to string }{
		"ipv4": {"192.0.2.0/24", "192.0.2.2", "198.51.100.1"},
		"ipv6": {"2001:db8:1::/64", "2001:db8:1::2", "2001:db8:2::1"},
	} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			v := "-" + family[3:]
			a, routers := netnstest.New(t), []*netnstest.NS{netnstest.New(t), netnstest.New(t)}
			lan := netnstest.LAN(t, tt.prefix, a, routers[0], routers[1])
			a.Run("ip", v, "route", "del", "default")
			var listen []func(time.Duration) []byte
			for _, r := range routers {
				r.Addr("lo", netip.PrefixFrom(netip.MustParseAddr(tt.to), netip.MustParseAddr(tt.to).BitLen()).String())
				if family == "ipv6" {
					r.Must(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }) // else it says that it is no router
					advertise(t, r)
				}
				listen = append(listen, (&tunnelHosts{t: t, b: r}).listen("eth0"))
			}
			if family == "ipv4" {
				a.Run("ip", "route", "add", "default", "via", "192.0.2.3")
				a.Run("ip", "route", "append", "default", "via", "192.0.2.4")
			}
			for limit := time.Now().Add(patience); strings.Count(a.Run("ip", v, "route"), "default") != 2; { // as advertised
				if time.Now().After(limit) {
					t.Fatal(a.Run("ip", v, "route"))
				}
			}
			a.Must(func() (err error) { // so that it takes less than a minute
				for name, value := range map[string]string{"delay_first_probe_time": "0", "retrans_time_ms": "200"} {
					err = errors.Join(err, os.WriteFile("/proc/sys/net/"+family+"/neigh/eth0/"+name, []byte(value), 0))
				}
				return err
			})

			h := &tunnelHosts{t: t, a: a, log: new(netnstest.Log), local: netip.MustParseAddr(tt.local), entries: make([]Entry, 1)}
			cfg := UDPConfig{Log: slog.New(slog.NewTextHandler(h.log, nil)), Local: netip.AddrPortFrom(h.local, testPort), Segment: true, GRO: true}
			a.Must(func() (err error) { h.carrier, err = Tunnel(cfg).Open(1); return err })
			t.Cleanup(h.carrier.Close)
			NewPeer(netip.AddrPortFrom(netip.MustParseAddr(tt.to), testPort)).Adopt(&h.entries[0], true)
			h.entries[0].Peer.wants.Store(true)
			h.sender = h.carrier.NewSender()

			// arrives sends by the uplink until something arrives at one of these routers, and returns which.
			arrives := func(at ...int) int {
				t.Helper()
				for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
					h.refresh()
					whole := h.way() != nil
					h.send(superFor(t, false, 3000, 1000))
					for _, i := range at {
						n := 0
						for b := listen[i](aMoment); b != nil; b = listen[i](aMoment / 10) {
							n++
						}
						if n > 0 && whole {
							return i
						}
					}
				}
				t.Fatalf("nothing arrives by the uplink at the routers %d:\n%s%s", at, a.Run("ip", v, "neigh"), h.log)
				return 0
			}
			first := arrives(0, 1)
			lan.Run("ip", "link", "set", fmt.Sprintf("port%d", 1+first), "down")
			for _, n := range strings.Split(a.Run("ip", v, "neigh", "show", "dev", "eth0", "nud", "reachable"), "\n") {
				if f := strings.Fields(n); len(f) > 0 { // as after half a minute
					a.Run("ip", append([]string{v, "neigh", "change", f[0], "dev", "eth0", "nud", "stale"}, f[3:len(f)-1]...)...) // "router" stays
				}
			}
			arrives(1 - first)
		})
	}
}

// advertise sends a router advertisement.
func advertise(t *testing.T, n *netnstest.NS) {
	t.Helper()
	n.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		from := unix.SockaddrInet6{ZoneId: uint32(l.Attrs().Index)}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() {
				from.Addr = [16]byte(a.IP)
			}
		}
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, l.Attrs().Index), unix.Bind(fd, &from)); err != nil {
			return err
		}
		ra := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0} // RFC 4861 section 4.2: half an hour; link-layer address
		copy(ra[18:], l.Attrs().HardwareAddr)
		return unix.Sendto(fd, ra, 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: from.ZoneId})
	})
}
