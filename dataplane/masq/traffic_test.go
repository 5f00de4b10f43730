package masq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// world is a host with a pod, with another host's pod behind its overlay device,
// and with something outside of the overlay that knows the way to all pods.
type world struct {
	*host
	pod, peer, outside *netnstest.NS
}

// addrs are the addresses of one family.
type addrs struct{ hostPod, pod, overlay, peer, hostOutside, outside, network string }

func worldAddrs() map[family]addrs {
	return map[family]addrs{
		ipv4: {"10.244.1.1", "10.244.1.2", "10.244.1.0", "10.244.2.2", "192.0.2.1", "192.0.2.2", testNetwork},
		ipv6: {"fd00:244:0:1::1", "fd00:244:0:1::2", "fd00:244:0:1::ff", "fd00:244:0:2::2", "2001:db8::1", "2001:db8::2", testNetwork6},
	}
}

func newWorld(t *testing.T, v variant) *world {
	w := &world{host: newHost(t, v), pod: netnstest.New(t), peer: netnstest.New(t), outside: netnstest.New(t)}
	netnstest.Link(w.NS, "pod0", w.pod, "eth0")
	netnstest.Link(w.NS, "flannel.7", w.peer, "eth0")
	netnstest.Link(w.NS, "eth0", w.outside, "eth0")
	w.Must(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	for _, a := range worldAddrs() {
		for _, l := range []struct {
			ns         *netnstest.NS
			link, addr string
			to         []string // through this link
			via        string
		}{
			{w.NS, "pod0", a.hostPod, []string{a.pod}, ""},
			{w.NS, "flannel.7", a.overlay, []string{a.network}, ""},
			{w.NS, "eth0", a.hostOutside, []string{a.outside}, ""},
			{w.pod, "eth0", a.pod, []string{a.hostPod}, a.hostPod},
			{w.peer, "eth0", a.peer, []string{a.overlay}, a.overlay},
			{w.outside, "eth0", a.outside, []string{a.hostOutside}, a.hostOutside},
		} {
			l.ns.Must(func() error { return errors.Join(route(l.link, l.addr, l.to, l.via), awaitLocal(l.addr)) })
		}
	}
	return w
}

// awaitLocal waits until packets to an address stay on this host: the kernel makes the route to a new IPv6 address later,
// and until then addrtype LOCAL does not match it.
func awaitLocal(addr string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		routes, err := netlink.RouteGet(net.ParseIP(addr))
		if err == nil && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not local: %v, %w", addr, routes, err)
		}
	}
}

// route gives a link an address, routes through it and the default route.
func route(link, addr string, to []string, via string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	errs := []error{netlink.AddrAdd(l, &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(addr)), Flags: unix.IFA_F_NODAD})}
	for _, dst := range to {
		p, err := netip.ParsePrefix(dst)
		if err != nil {
			a := netip.MustParseAddr(dst)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		ipnet := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipnet, Scope: netlink.SCOPE_LINK}))
	}
	if via != "" {
		errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(via)}))
	}
	return errors.Join(errs...)
}

const echoPort = 7777

// echo answers datagrams on a port with the address they came from until the test
// ends, and counts them by that address.
func echo(t *testing.T, ns *netnstest.NS, addr string, port int) (counts *sync.Map) {
	t.Helper()
	var c *net.UDPConn
	ns.Must(func() (err error) {
		if c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: port}); err != nil {
			return err
		}
		return netnstest.HoldBurst(c)
	})
	var wg sync.WaitGroup
	counts = &sync.Map{}
	wg.Go(func() {
		buf := make([]byte, 64)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			n, _ := counts.LoadOrStore(from.Addr().Unmap(), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			_, _ = c.WriteToUDPAddrPort([]byte(from.String()), from)
		}
	})
	t.Cleanup(func() { c.Close(); wg.Wait() })
	return counts
}

// ask sends to an echo and returns the source that it saw. Source port 0 is any.
func ask(ns *netnstest.NS, from string, fromPort int, to string, toPort int, wait time.Duration) (seen netip.AddrPort, err error) {
	err = ns.Do(func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from), Port: fromPort}, &net.UDPAddr{IP: net.ParseIP(to), Port: toPort})
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 64)
		for end := time.Now().Add(wait); time.Now().Before(end); {
			_, _ = c.Write([]byte("?"))
			c.SetReadDeadline(time.Now().Add(wait / 10))
			if n, err := c.Read(buf); err == nil {
				seen, err = netip.ParseAddrPort(string(buf[:n]))
				return err
			}
		}
		return fmt.Errorf("no answer from %s", to)
	})
	return seen, err
}

// TestTraffic: who is seen as the source of what, if FORWARD drops in all
// tables that the host has.
func TestTraffic(t *testing.T) {
	for _, c := range []struct {
		v    variant
		want dataplane.Wanted
	}{{nftVariant, wanted()}, {noIptables, wanted()}, {iptNFT, wanted()}, {iptLegacy, wanted()}, {nftVariant, wantedMixed()}, {iptNFT, wantedMixed()}} {
		v := c.v
		t.Run(fmt.Sprint(v, c.want.Underlay), func(t *testing.T) {
			w := newWorld(t, v)
			w.dropForward(v != noIptables)
			w.feed("table inet marks { chain pre { type filter hook prerouting priority 0; udp sport 4444 meta mark set 0x14001; }; }", w.real["nft"], "-f", "-")
			all := worldAddrs()
			for _, f := range []family{ipv4, ipv6} {
				echo(t, w.pod, all[f].pod, echoPort)
				echo(t, w.peer, all[f].peer, echoPort)
				echo(t, w.outside, all[f].outside, echoPort)
				if _, err := ask(w.pod, all[f].pod, 0, all[f].outside, echoPort, 200*time.Millisecond); err == nil {
					t.Fatal("the host forwards without rules: the test shows nothing")
				}
			}
			w.sync(w.config(), c.want)
			for _, f := range []family{ipv4, ipv6} {
				a := all[f]
				for _, c := range []struct {
					what     string
					ns       *netnstest.NS
					from     string
					port     int
					to, want string
				}{
					{"pod to outside", w.pod, a.pod, 0, a.outside, a.hostOutside},
					{"pod to outside from the VXLAN port", w.pod, a.pod, testVXLANPort, a.outside, a.hostOutside},
					{"pod to outside, marked by kube-proxy", w.pod, a.pod, 4444, a.outside, a.pod},
					{"pod to pod of a peer", w.pod, a.pod, 0, a.peer, a.pod},
					{"pod of a peer to pod", w.peer, a.peer, 0, a.pod, a.peer},
					{"outside to pod", w.outside, a.outside, 0, a.pod, a.outside},
					{"outside to pod of a peer", w.outside, a.outside, 0, a.peer, a.overlay},
				} {
					got, err := ask(c.ns, c.from, c.port, c.to, echoPort, 5*time.Second)
					if err != nil {
						t.Errorf("%s %s: %v", f, c.what, err)
						continue
					}
					if got.Addr().String() != c.want {
						t.Errorf("%s %s: the source is %s, want %s", f, c.what, got, c.want)
					}
					if c.want != c.from && got.Port() <= testVXLANPort {
						t.Errorf("%s %s: the source port is %d, want one above %d", f, c.what, got.Port(), testVXLANPort)
					}
				}
			}
		})
	}
}

// TestPortsKept: with ports not chosen at random a port stays if it may, and the VXLAN port may not.
func TestPortsKept(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			w := newWorld(t, v)
			c := w.config()
			c.RandomFully = false
			w.sync(c, wanted())
			for _, a := range worldAddrs() {
				echo(t, w.outside, a.outside, echoPort)
				for port, kept := range map[int]bool{50000: true, testVXLANPort: false} {
					got, err := ask(w.pod, a.pod, port, a.outside, echoPort, 5*time.Second)
					if err != nil {
						t.Fatal(err)
					}
					if got.Addr().String() != a.hostOutside || (int(got.Port()) == port) != kept {
						t.Errorf("from port %d the source is %s, want %s with the port kept: %v", port, got, a.hostOutside, kept)
					}
				}
			}
		})
	}
}

// TestTunnelUntouched: even if somebody's network holds the underlay's addresses, tunnel packets keep their source port.
func TestTunnelUntouched(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			w := newWorld(t, v)
			w.sync(w.config(), dataplane.Wanted{Networks: prefixes("192.0.0.0/16", "2001:db8::/32"), Subnets: prefixes("192.0.99.0/24", "2001:db8:99::/64")})
			for _, a := range worldAddrs() {
				for port, kept := range map[int]bool{testVXLANPort: true, echoPort: false} {
					echo(t, w.outside, a.outside, port)
					got, err := ask(w.NS, a.hostOutside, 1234, a.outside, port, 5*time.Second)
					if err != nil {
						t.Fatal(err)
					}
					if (got.Port() == 1234) != kept {
						t.Errorf("to port %d the source is %s; want the port kept: %v", port, got, kept)
					}
				}
			}
		})
	}
}

// TestTakeoverWithoutGap: while flannel's rules or those of another mode are
// replaced, and while a Sync changes them, every new connection passes and is masqueraded.
func TestTakeoverWithoutGap(t *testing.T) {
	for _, from := range []variant{nftVariant, iptNFT, iptLegacy} {
		for _, to := range []variant{nftVariant, iptNFT, iptLegacy} {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				w := newWorld(t, to)
				w.flannel(from, same)
				// Flannel's accept works only if it wrote with iptables.
				for _, f := range []family{ipv4, ipv6} {
					if multi := map[variant]string{iptNFT: "xtables-nft-multi", iptLegacy: "xtables-legacy-multi"}[from]; multi != "" {
						w.Run(w.real[multi], commandOf(f), "-P", "FORWARD", "DROP")
					}
				}
				for f, a := range worldAddrs() {
					w.unbroken(t, a, func() {
						r := w.sync(w.config(), wanted())
						again := wanted()
						again.Networks = again.Networks[:1]
						if f == ipv6 {
							again = wanted()
							again.Networks = again.Networks[1:]
						}
						w.Must(func() error { _, err := r.Sync(context.Background(), again); return err })
						w.Must(func() error { _, err := r.Sync(context.Background(), wanted()); return err })
					})
				}
			})
		}
	}
}

// unbroken opens connections of the pod to the outside while change runs, and wants each to pass
// and to be masqueraded.
func (w *world) unbroken(t *testing.T, a addrs, change func()) {
	t.Helper()
	counts := echo(t, w.outside, a.outside, echoPort)
	var sent atomic.Int64
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- w.pod.Do(func() error { return shower(a, stop, &sent) }) }()
	for end := time.Now().Add(patience); sent.Load() < 10 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // or the change may be over before
	}
	change()
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	arrived := int64(0)
	for end := time.Now().Add(2 * time.Second); arrived < sent.Load() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n, ok := counts.Load(netip.MustParseAddr(a.hostOutside)); ok {
			arrived = n.(*atomic.Int64).Load()
		}
	}
	if arrived != sent.Load() || arrived < 10 {
		t.Errorf("%s: %d of %d new connections arrived with the host's address", a.hostOutside, arrived, sent.Load())
		counts.Range(func(k, v any) bool { t.Logf("from %v: %d", k, v.(*atomic.Int64).Load()); return true })
	}
}

// TestUpgradeWithoutGap: the rules of an overlayd that wrote no comments are replaced by those with
// comments, also the jumps, and every new connection meanwhile passes and is masqueraded.
func TestUpgradeWithoutGap(t *testing.T) {
	for _, v := range []variant{nftVariant, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			w := newWorld(t, v)
			w.dropForward(true)
			w.sync(w.config(), wanted())
			want := w.ours()
			w.stripComments()
			if got := w.ours(); strings.Contains(got, "overlayd masq") || strings.Contains(got, "overlayd forward") {
				t.Fatalf("the rules still have comments:\n%s", got)
			}
			for _, a := range worldAddrs() {
				w.unbroken(t, a, func() { w.sync(w.config(), wanted()) })
			}
			if diff := cmp.Diff(want, w.ours()); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

// stripComments makes the rules those of an older overlayd.
func (h *host) stripComments() {
	h.tb.Helper()
	comments := regexp.MustCompile(` (-m comment --)?comment "overlayd (masq|forward)"`)
	for _, f := range []family{ipv4, ipv6} {
		if h.variant.isNFT() {
			table := fmt.Sprintf("table %s overlayd-%d", f, testVNI)
			h.feed(comments.ReplaceAllString("delete "+table+"\n"+h.nft("-s", "list", "table", f.String(), fmt.Sprint("overlayd-", testVNI)), ""), h.real["nft"], "-f", "-")
		}
		for _, multi := range []string{"xtables-nft-multi", "xtables-legacy-multi"} {
			for name, table := range parseSave(h.Run(h.real[multi], commandOf(f)+"-save")) {
				var lines []string
				for _, chain := range table.chains {
					if isOurChain(chain) {
						lines = append(lines, ":"+chain+" - [0:0]")
					}
				}
				for _, r := range table.rules {
					if bare := comments.ReplaceAllString(" "+r.spec, ""); isOurChain(r.chain) || isOurChain(r.target()) {
						if !isOurChain(r.chain) {
							lines = append(lines, "-D "+r.chain+" "+r.spec)
						}
						lines = append(lines, "-A "+r.chain+bare)
					}
				}
				if text := restoreText(name, lines); text != "" {
					h.feed(text, h.real[multi], commandOf(f)+"-restore", "--noflush")
				}
			}
		}
	}
}

// shower opens one connection after the other until stop.
func shower(a addrs, stop <-chan struct{}, sent *atomic.Int64) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.pod)}, &net.UDPAddr{IP: net.ParseIP(a.outside), Port: echoPort})
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("?"))
		c.Close()
		if err != nil {
			return err
		}
		sent.Add(1)
		time.Sleep(200 * time.Microsecond)
	}
}
