package guard

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// BenchmarkCost prints what the guard costs, in -benchtime=<rounds>x: packets of 64 bytes from pod to pod, from host to pod and
// from host to host, and TCP. Strict and off take turns; of short bursts the quickest counts, which the rest of the machine disturbs least.
func BenchmarkCost(t *testing.B) {
	rounds := max(2, t.N) // one of each
	w := newWorld(t, false)
	off := false
	w.config = func(c *Config) { c.Off = func() bool { return off } }
	w.join()
	a, b := w.hosts[0], w.hosts[1]
	target := netip.AddrPortFrom(b.podAddr(false), 7)
	sink := listenTCP(t, b, target)
	for _, at := range []struct { // nobody reads from them: the kernel drops what comes when they are full
		ns *netnstest.NS
		to netip.AddrPort
	}{{b.pod, target}, {b.NS, netip.AddrPortFrom(b.overlay(false), 7)}} {
		var full *net.UDPConn
		at.ns.Must(func() (err error) { full, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at.to)); return err })
		t.Cleanup(func() { full.Close() })
	}
	kinds := []struct {
		name  string
		burst func() time.Duration
	}{
		{"64 bytes, pod to pod", func() time.Duration { return blast(t, a, true, target) }},
		{"64 bytes, host to pod", func() time.Duration { return blast(t, a, false, target) }},
		{"64 bytes, host to host", func() time.Duration { return blast(t, a, false, netip.AddrPortFrom(b.overlay(false), 7)) }},
		{"TCP, pod to pod", func() time.Duration { return stream(t, a, sink) }},
	}
	took := map[string][]time.Duration{}
	for round := range rounds {
		off = round%2 == 1
		for _, h := range w.hosts[:2] {
			h.Must(h.guard.Switched)
		}
		for _, k := range kinds {
			for range 5 {
				name := fmt.Sprint(k.name, off)
				took[name] = append(took[name], k.burst())
			}
		}
	}
	for _, k := range kinds {
		strict, none := took[k.name+"false"], took[k.name+"true"]
		slices.Sort(strict)
		slices.Sort(none)
		ratio := func(at int) float64 { return float64(none[at]) / float64(strict[at]) }
		t.Logf("%-23s strict %v, off %v: %.3f; of the fastest quarter %.3f, of the medians %.3f", k.name, strict[0], none[0], ratio(0), ratio(len(none)/8), ratio(len(none)/2))
	}
}

// blast sends packets as fast as it can, and returns the processor time that this took, which others disturb less than the clock. On a
// veth link the sender does all the work, that of the receiving host too.
func blast(t testing.TB, a *host, pod bool, to netip.AddrPort) (took time.Duration) {
	ns := a.NS
	if pod {
		ns = a.pod
	}
	ns.Must(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		b, start := make([]byte, 64), threadTime(t)
		for range 2_000 {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
		took = threadTime(t) - start
		return nil
	})
	return took
}

// threadTime is the processor time of the calling thread, which is a goroutine's own in [netnstest.NS.Must].
func threadTime(t testing.TB) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// stream sends a lot to a TCP port, and returns how long that took.
func stream(t testing.TB, a *host, to net.Addr) (took time.Duration) {
	a.pod.Must(func() error {
		c, err := net.Dial("tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		b, start := make([]byte, 256<<10), time.Now()
		for range 400 {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
		c.(*net.TCPConn).CloseWrite()
		_, err = io.Copy(io.Discard, c)
		took = time.Since(start)
		return err
	})
	return took
}

// listenTCP takes what comes to a port of the pod, and closes when the other end does.
func listenTCP(t testing.TB, b *host, at netip.AddrPort) net.Addr {
	var l net.Listener
	b.pod.Must(func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	return l.Addr()
}
