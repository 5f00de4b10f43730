package hostroute

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

var native = binary.NativeEndian

// host is a namespace on a LAN that keeps host routes, and with a kernel dataplane if
// the test opens one.
type host struct {
	*netnstest.NS
	tb     testing.TB
	number int
	cfg    Config
	r      *Routes
	dp     *kernel.Dataplane
}

// newHosts makes n hosts on one LAN, whose bridge is a router: eth0 of host i has
// 192.0.2.(2+i)/24 and 2001:db8::(2+i)/64.
func newHosts(tb testing.TB, n int) (hosts []*host, router *netnstest.NS) {
	tb.Helper()
	var all []*netnstest.NS
	for i := range n {
		h := &host{NS: netnstest.New(tb), tb: tb, number: i, cfg: Config{Log: slog.New(slog.DiscardHandler), Direct: true}}
		hosts, all = append(hosts, h), append(all, h.NS)
	}
	router = netnstest.LAN(tb, "192.0.2.0/24", all...)
	router.Must(func() error {
		for _, s := range [][2]string{
			{"net/ipv4/ip_forward", "1"}, {"net/ipv6/conf/all/forwarding", "1"},
			{"net/ipv4/conf/all/send_redirects", "0"}, {"net/ipv4/conf/br0/send_redirects", "0"},
		} {
			if err := rtnl.SetSysctl(s[0], s[1]); err != nil {
				return err
			}
		}
		return nil
	})
	router.Run("ip", "addr", "add", "2001:db8::1/64", "dev", "br0", "nodad")
	for i, h := range hosts {
		h.Run("ip", "addr", "add", fmt.Sprintf("2001:db8::%d/64", i+2), "dev", "eth0", "nodad")
		h.Run("ip", "route", "add", "default", "via", "2001:db8::1", "dev", "eth0")
	}
	return hosts, router
}

func (h *host) open() *host {
	h.tb.Helper()
	h.Must(func() (err error) { h.r, err = Open(h.cfg); return err })
	h.tb.Cleanup(func() { h.r.Close() })
	return h
}

func (h *host) underlays() []dataplane.Underlay {
	h.tb.Helper()
	var out []dataplane.Underlay
	h.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + h.number)}), addr(fmt.Sprintf("2001:db8::%d", 2+h.number))} {
			out = append(out, dataplane.Underlay{Link: l.Attrs().Index, Local: a, Public: a})
		}
		return nil
	})
	return out
}

// openKernel opens the kernel dataplane of both families.
func (h *host) openKernel() {
	h.tb.Helper()
	c := kernel.Config{Log: slog.New(slog.DiscardHandler), Underlays: h.underlays(), VNI: 1, Port: 8472, MTU: 1400}
	h.Must(func() (err error) { h.dp, err = kernel.Open(c); return err })
	h.tb.Cleanup(func() { h.dp.Close() })
}

// sync does as the daemon does: host routes first, then the dataplane; and back.
func (h *host) sync(wanted dataplane.Wanted) dataplane.Wanted {
	h.tb.Helper()
	w, err := h.r.Sync(h.tb.Context(), wanted)
	if err == nil && h.dp != nil {
		_, err = h.dp.Sync(h.tb.Context(), w)
	}
	if err == nil {
		err = h.r.Prune(h.tb.Context(), wanted)
	}
	if err != nil && h.tb.Context().Err() == nil {
		h.tb.Error(err)
	}
	return w
}

// run starts Run of both. A changed decision is followed by sync of w, unless that is nil.
func (h *host) run(w *dataplane.Wanted) {
	h.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	changed := func() {
		if w != nil {
			h.sync(*w)
		}
	}
	n := 1
	go func() { done <- h.r.Run(ctx, changed) }()
	if h.dp != nil {
		n++
		go func() { done <- h.dp.Run(ctx, func() {}) }()
	}
	h.tb.Cleanup(func() {
		cancel()
		for range n {
			if err := <-done; err != nil {
				h.tb.Errorf("Run: %v", err)
			}
		}
	})
}

// ours lists the routes of our protocol as ip shows them, without nexthop ids.
func (h *host) ours() string {
	h.tb.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.Run("ip", family, "route", "show", "proto", "211")) {
			fields := strings.Fields(line)
			if i := indexOf(fields, "nhid"); i >= 0 {
				fields = append(fields[:i], fields[i+2:]...)
			}
			line = strings.Join(fields, " ")
			line = strings.TrimSuffix(strings.TrimSuffix(line, " pref medium"), " metric 1024")
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// awaitGiven waits until there are n direct routes.
func (h *host) awaitGiven(n int) {
	h.tb.Helper()
	given := func() int {
		h.r.mu.Lock()
		defer h.r.mu.Unlock()
		return len(h.r.given)
	}
	for deadline := time.Now().Add(netnstest.Patient(2 * time.Second)); given() != n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.tb.Fatalf("%d direct routes, not %d", given(), n)
		}
	}
}

func indexOf(fields []string, word string) int {
	for i, f := range fields {
		if f == word {
			return i
		}
	}
	return -1
}

// expect fails the test unless the routes of our protocol are these, in time.
func (h *host) expect(within time.Duration, want ...string) {
	h.tb.Helper()
	text := strings.Join(want, "\n")
	for deadline := time.Now().Add(netnstest.Patient(within)); ; time.Sleep(10 * time.Millisecond) {
		got := h.ours()
		if got == text {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("after %v there is\n%s\nand not\n%s", netnstest.Patient(within), got, text)
		}
	}
}

// listen binds a UDP socket in the host, and closes it with the test.
func (h *host) listen(a string) *net.UDPConn {
	h.tb.Helper()
	var c *net.UDPConn
	h.Must(func() (err error) {
		if c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(a), 0))); err != nil {
			return err
		}
		return netnstest.HoldBurst(c)
	})
	h.tb.Cleanup(func() { c.Close() })
	return c
}
