package hostroute

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

const blackhole4 = "blackhole 10.5.1.0/24 metric 1048576"

func TestRunRepairsWhatOthersChange(t *testing.T) {
	all := []string{blackhole4, directB, "blackhole fd00:0:0:1::/64 dev lo metric 1048576", direct6}
	for _, args := range []string{
		"route del 10.5.2.0/24",
		"-6 route del fd00:0:0:2::/64",
		"route del blackhole 10.5.1.0/24 metric 1048576",
		"-6 route del blackhole fd00:0:0:1::/64 metric 1048576",
		"route replace 10.5.2.0/24 via 192.0.2.9 proto 211",
		"route flush proto 211",
		"route add 10.5.7.0/24 via 192.0.2.9 proto 211",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			hosts, _ := newHosts(t, 1)
			h := hosts[0]
			h.cfg.Blackhole = true
			h.open()
			w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("2001:db8::3", "fd00:0:0:2::/64"))
			h.sync(w)
			h.expect(0, all...)
			if strings.Contains(args, "10.5.7") { // not a subnet that we know: found by the next comparison
				h.run(&w)
				h.Run("ip", strings.Fields(args)...)
				h.r.dirty.Store(true)
				h.r.watch.Wake()
			} else {
				h.run(nil)
				h.Run("ip", strings.Fields(args)...)
			}
			h.expect(2*time.Second, all...)
		})
	}
}

// The link flaps: the kernel removes the routes without a word, and they come back.
func TestRunFollowsTheLink(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	h.sync(w)
	h.run(&w)
	for range 2 {
		h.Run("ip", "link", "set", "eth0", "down")
		h.expect(2*time.Second, "")
		h.Run("ip", "link", "set", "eth0", "up")
		h.expect(2*time.Second, directB)
	}
	h.Run("ip", "route", "add", "10.5.0.0/16", "dev", "lo", "proto", "211") // as of the userspace dataplane
	h.Run("ip", "rule", "add", "to", "192.0.2.3", "lookup", "77", "prio", "5")
	h.Run("ip", "route", "add", "192.0.2.3", "via", "192.0.2.1", "dev", "eth0", "table", "77")
	h.expect(2*time.Second, "10.5.0.0/16 dev lo scope link")
	h.Run("ip", "rule", "del", "prio", "5")
	h.expect(2*time.Second, "10.5.0.0/16 dev lo scope link", directB)
	h.Run("ip", "addr", "flush", "dev", "eth0")
	h.expect(2*time.Second, "10.5.0.0/16 dev lo scope link")
	h.Run("ip", "addr", "add", "192.0.2.2/24", "dev", "eth0")
	h.expect(2*time.Second, "10.5.0.0/16 dev lo scope link", directB)
}

// A route that somebody has put in the place of ours is theirs, until it goes.
func TestRunLeavesForeignReplacementAlone(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	h.sync(w)
	h.run(&w)
	h.Run("ip", "route", "replace", "10.5.2.0/24", "via", "192.0.2.9", "proto", "static")
	h.awaitGiven(0)
	if out := h.Run("ip", "route", "show", "10.5.2.0/24"); !strings.Contains(out, "192.0.2.9") {
		t.Errorf("the route is %s", out)
	}
	h.Run("ip", "route", "del", "10.5.2.0/24")
	h.expect(2*time.Second, directB)
}

// While somebody else routes a peer's subnet, the host's routes are not read again and again. The direct route is back
// soon after that route has gone, also if the kernel does not tell of that.
func TestObstacleRemoved(t *testing.T) {
	for _, c := range []struct{ name, obstacle, removal string }{
		{"route", "ip route replace 10.5.2.0/24 via 192.0.2.9 proto static", "ip route del 10.5.2.0/24"},
		{"blackhole", "ip route replace blackhole 10.5.2.0/24 proto static", "ip route del blackhole 10.5.2.0/24"},
		{"route of a link", "ip link add x up type bridge && ip route replace 10.5.2.0/24 dev x proto static", "ip link del x"},
		{"routes of links", "ip link add x up type bridge && ip route replace 10.5.2.0/24 proto static nexthop dev x nexthop dev x", "ip link set x down"},
		{"nexthop object", "ip nexthop add id 7 via 192.0.2.9 dev eth0 && ip route replace 10.5.2.0/24 nhid 7 proto static", "ip nexthop del id 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hosts, _ := newHosts(t, 1)
			h := hosts[0].open()
			w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
			h.sync(w)
			h.expect(0, directB)
			h.run(&w)
			h.Run("sh", "-c", c.obstacle)
			h.awaitGiven(0)
			if h.r.retry() {
				t.Error("all routes are read all the time")
			}
			h.Run("sh", "-c", c.removal)
			h.expect(2*time.Second, directB)
		})
	}
}

// If the routes cannot be read, the status says so.
func TestStatusWithoutARead(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	h.sync(wanted(newPeer("192.0.2.3", "10.5.2.0/24")))
	var was unix.Rlimit
	h.Must(func() error {
		h.r.rt.Close() // so that each request needs a new socket
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max}); err != nil {
			return err
		}
		h.r.dirty.Store(true)
		h.r.look()
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	})
	if s := h.r.Status(); s.State != dataplane.StateFailed || !strings.Contains(s.Err, "list routes") {
		t.Errorf("got %+v", s)
	}
	h.Must(func() error { h.r.look(); return nil })
	if s := h.r.Status(); s.State != dataplane.StateOK {
		t.Errorf("got %+v", s)
	}
}

func TestRunIsQuietWhereNothingConcernsIt(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	h.sync(w)
	h.run(&w)
	h.awaitQuiet()
	h.Run("ip", "link", "add", "veth1", "type", "veth", "peer", "name", "veth2")
	h.Run("ip", "link", "set", "veth1", "up")
	h.Run("ip", "route", "add", "10.5.1.7/32", "dev", "veth1")
	h.Run("ip", "link", "del", "veth1")
	h.sync(wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("198.51.100.9", "10.5.9.0/24")))
	if !h.settled() {
		t.Error("a pod makes it read everything again")
	}
}

// settled reports whether Run has nothing to look at.
func (h *host) settled() bool {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return h.r.known && !h.r.dirty.Load()
}

// awaitQuiet waits until Run has had nothing to look at for longer than it gathers: it
// looks at the notifications of its own routes, too.
func (h *host) awaitQuiet() {
	h.tb.Helper()
	quiet := time.Now()
	for deadline := time.Now().Add(10 * time.Second); time.Since(quiet) < 3*gather; time.Sleep(10 * time.Millisecond) {
		if !h.settled() {
			quiet = time.Now()
		}
		if time.Now().After(deadline) {
			h.tb.Fatal("never quiet")
		}
	}
}

func TestRunEnds(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.r.Run(ctx, func() {}) }()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Second):
		t.Fatal("Run does not end")
	}
	goleak.VerifyNone(t, leaks)
}

// stream sends a datagram each millisecond until stop is closed, and reports how
// many were sent and arrived, and the longest time without one.
func stream(a, b *net.UDPConn, stop chan struct{}) (sent, received int, gap time.Duration, err error) {
	done := make(chan struct{})
	var got atomic.Uint64
	go func() {
		defer close(done)
		buf, last := make([]byte, 64), time.Now()
		for {
			n, err := b.Read(buf)
			if err != nil {
				return
			}
			if n != len("stream") { // of an earlier try that waited for a neighbour
				continue
			}
			gap, last = max(gap, time.Since(last)), time.Now()
			got.Add(1)
		}
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-stop:
			running = false
		case <-tick.C:
			if _, err = a.WriteTo([]byte("stream"), b.LocalAddr()); err != nil {
				running = false
			}
			sent++
		}
	}
	netnstest.AwaitArrival(uint64(sent), got.Load)
	b.SetReadDeadline(time.Now())
	<-done
	return sent, int(got.Load()), gap, err
}

// A peer comes on-link and goes off it again, under traffic: nothing may be lost.
func TestSwitchingKeepsTraffic(t *testing.T) {
	for _, f := range []struct{ name, a, b, detour, gateway, subnetA, subnetB string }{
		{"v4", "10.5.1.0", "10.5.2.0", "192.0.2.3/32", "192.0.2.1", "10.5.1.0/24", "10.5.2.0/24"},
		{"v6", "fd00:0:0:1::", "fd00:0:0:2::", "2001:db8::3/128", "2001:db8::1", "fd00:0:0:1::/64", "fd00:0:0:2::/64"},
	} {
		t.Run(f.name, func(t *testing.T) {
			hosts, _ := newHosts(t, 2)
			a, b := hosts[0], hosts[1]
			var wants [2]dataplane.Wanted
			for i, h := range hosts {
				h.openKernel()
				h.open()
				wants[i] = wanted()
				wants[i].Subnets = prefixes("10.5.1.0/24", "fd00:0:0:1::/64")
			}
			wants[1].Subnets = prefixes("10.5.2.0/24", "fd00:0:0:2::/64")
			for i, w := range wants {
				for n, v := range hosts[1-i].dp.VTEPs() {
					w.Peers = append(w.Peers, dataplane.Peer{VTEP: v, Subnets: wants[1-i].Subnets[n : n+1]})
				}
				wants[i] = w
				hosts[i].sync(w)
				hosts[i].run(&wants[i])
			}
			client, server := a.listen(f.a), b.listen(f.b)
			for deadline := time.Now().Add(30 * time.Second); ; { // neighbours take long to find on a busy machine
				client.WriteTo([]byte{1}, server.LocalAddr())
				server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, _, err := server.ReadFrom(make([]byte, 8)); err == nil {
					break
				} else if time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
			server.SetReadDeadline(time.Time{})
			stop, result := make(chan struct{}), make(chan string, 1)
			go func() {
				sent, received, gap, err := stream(client, server, stop)
				t.Logf("sent %d, received %d, longest gap %v", sent, received, gap)
				if sent != received || err != nil {
					result <- fmt.Sprintf("sent %d, received %d, longest gap %v, %v", sent, received, gap, err)
				}
				close(result)
			}()
			for range 5 {
				a.awaitWay(f.b, "dev eth0")
				a.Run("ip", "route", "add", f.detour, "via", f.gateway, "dev", "eth0")
				a.awaitWay(f.b, "dev flannel")
				a.Run("ip", "route", "del", f.detour)
			}
			a.awaitWay(f.b, "dev eth0")
			close(stop)
			if r, bad := <-result; bad {
				t.Error(r)
			}
		})
	}
}

// awaitWay waits until packets to an address go the way that `ip route get` says so of.
func (h *host) awaitWay(to, way string) {
	h.tb.Helper()
	for deadline := time.Now().Add(netnstest.Patient(2 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		out, err := h.Output("ip", "route", "get", netip.MustParseAddr(to).String())
		if err == nil && strings.Contains(out, way) {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Errorf("packets to %s go %s, not %s", to, out, way)
			return
		}
	}
}

// A route that the dataplane has put in the place of a direct route stays, although nobody
// listens to notifications if no host routes are wanted.
func TestReplacedRouteStays(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	h.cfg.Direct = false
	h.openKernel()
	h.open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("2001:db8::3", "fd00:0:0:2::/64"))
	h.run(&w)
	h.sync(wanted())
	h.awaitQuiet()
	h.Run("ip", "route", "add", "10.5.2.0/24", "via", "192.0.2.3", "proto", "211")
	h.Run("ip", "route", "add", "fd00:0:0:2::/64", "via", "2001:db8::3", "proto", "211")
	h.r.dirty.Store(true) // as if they had been there at the start
	h.sync(w)
	encapsulated := []string{"10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink", "fd00:0:0:2::/64 via fd00:0:0:2:: dev flannel-v6.1 metric 1024 onlink"}
	h.expect(0, encapsulated...)
	h.sync(w)
	h.expect(0, encapsulated...)
}

// A repair names its routes in the log and is counted, a change that Sync makes is not.
func TestRepairsAreCountedAndLogged(t *testing.T) {
	hosts, _ := newHosts(t, 1)
	h := hosts[0]
	var log strings.Builder
	h.cfg.Log, h.cfg.Blackhole = slog.New(slog.NewTextHandler(&log, nil)), true
	h.open()
	w := wanted(newPeer("192.0.2.3", "10.5.2.0/24"))
	h.sync(w)
	h.r.running = true // without Run: the test looks itself
	if differs := h.r.look(); differs || log.Len() > 0 {
		t.Errorf("differs %v, log %s", differs, log.String())
	}
	h.Run("ip", "route", "del", "10.5.2.0/24")
	h.Run("ip", "route", "del", "blackhole", "10.5.1.0/24", "metric", "1048576")
	h.r.dirty.Store(true)
	if differs := h.r.look(); differs {
		t.Error("a repair needs a Sync")
	}
	h.expect(0, blackhole4, directB, "blackhole fd00:0:0:1::/64 dev lo metric 1048576")
	for i, want := range []dataplane.ObjectStatus{{Kind: kindDirect, Wanted: 1, Have: 1}, {Kind: kindBlackhole, Wanted: 2, Have: 2}} {
		got := h.r.Status().Objects[i]
		if got.Repairs != 1 || got.LastRepair.IsZero() || got.Kind != want.Kind || got.Wanted != want.Wanted || got.Have != want.Have {
			t.Errorf("got %+v", got)
		}
	}
	for _, part := range []string{`change.op=add change.kind="direct route" change.key=10.5.2.0/24 change.was="" change.is="via 192.0.2.3"`,
		"change.op=add change.kind=blackhole change.key=10.5.1.0/24"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("want %s in %s", part, log.String())
		}
	}
}

// TestRoutesOfAnEarlierRunSettle: a direct route of an earlier run stays while its peer may publish its lease again, and goes
// then if it has not.
func TestRoutesOfAnEarlierRunSettle(t *testing.T) {
	t.Parallel()
	hosts, _ := newHosts(t, 1)
	h := hosts[0].open()
	h.sync(wanted(newPeer("192.0.2.3", "10.5.2.0/24"), newPeer("192.0.2.4", "10.5.4.0/24")))
	h.r.Close()
	h.cfg.Settle = 2 * time.Second
	h.open()
	now := wanted(newPeer("192.0.2.4", "10.5.4.0/24"))
	h.sync(now)
	h.expect(0, directB, "10.5.4.0/24 via 192.0.2.4 dev eth0")
	h.run(&now)
	h.expect(10*time.Second, "10.5.4.0/24 via 192.0.2.4 dev eth0")
}
