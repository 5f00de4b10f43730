package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withBackend is testNetwork with more keys in its Backend.
func withBackend(keys string) string {
	return strings.Replace(testNetwork, `"vxlan"`, `"vxlan"`+keys, 1)
}

// TestSessionRestartLosesNothing: config changes under which the nodes keep their subnets restart the session on both hosts, while pods ping each other
// 100 times a second. Nothing is lost, in either dataplane, and the UDP port of a userspace host is never free.
func TestSessionRestartLosesNothing(t *testing.T) {
	t.Parallel()
	const direct = `,"DirectRouting":true`
	wider := func(config string) string { return strings.Replace(config, "10.5.0.0/16", "10.4.0.0/15", 1) }
	hostGW := strings.Replace(testNetwork, "vxlan", "host-gw", 1)
	type change struct {
		name  string
		to    string // and back to from
		from  string
		other bool // the network has another port meanwhile, or no port at all
	}
	changes := []change{
		{"bounds", strings.Replace(testNetwork, "10.5.63.0", "10.5.64.0", 1), testNetwork, false}, // leases fit both
		{"nftables", strings.Replace(testNetwork, `{`, `{"EnableNFTables":true,`, 1), testNetwork, false},
		{"DirectRouting", withBackend(direct), testNetwork, false},
		{"port, direct", withBackend(direct + `,"Port":8473`), withBackend(direct), true},
		{"VNI, direct", withBackend(direct + `,"VNI":7`), withBackend(direct), false},
		{"wider, direct", wider(withBackend(direct)), withBackend(direct), false},
		{"wider, host-gw", wider(hostGW), hostGW, true},
	}
	for _, modes := range [][2]string{{modeUserspace, modeUserspace}, {modeKernel, modeKernel}, {modeUserspace, modeKernel}} {
		if modes[0] != modes[1] {
			changes = changes[:1]
		}
		for _, change := range changes {
			t.Run(fmt.Sprintf("%s/%s-%s", change.name, modes[0], modes[1]), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 2, change.from)
				a, b := c.upPair(modes, "--ip-masq")
				subnets := [2]netip.Prefix{c.hosts[0].gateway(), c.hosts[1].gateway()}
				taken := c.hosts[0].grabsPort(8472)
				there, err := startMeter(a.NS, b.NS, b.addr, 10*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				back, err := startMeter(b.NS, a.NS, a.addr, 10*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				for i, config := range []string{change.to, change.from} {
					waitTraffic(t, there, 30)
					c.put("/coreos.com/network/config", config)
					for _, h := range c.hosts {
						h.waitSessions(2 + i)
					}
					waitTraffic(t, back, 100)
				}
				if lost := [2]uint64{there.finish(), back.finish()}; lost != [2]uint64{} {
					t.Errorf("%d datagrams are lost there, %d back", lost[0], lost[1])
				}
				if got := [2]netip.Prefix{c.hosts[0].gateway(), c.hosts[1].gateway()}; got != subnets {
					t.Errorf("the subnets are %s, were %s", got, subnets)
				}
				if n := taken(); n > 0 && modes[0] == modeUserspace && !change.other {
					t.Errorf("a local user got the UDP port %d times", n)
				}
			})
		}
	}
}

// TestSessionRestartOfOneNetwork: of several networks of a daemon one has another config: neither it nor the one beside it loses anything, and
// the port that they share is never free.
func TestSessionRestartOfOneNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "")
	names := []string{"blue", "red"}
	blue := func(last string) string {
		return `{"Network":"10.5.0.0/16","SubnetMax":"` + last + `","Backend":{"Type":"vxlan","VNI":10}}`
	}
	c.put("/coreos.com/network/blue/config", blue("10.5.62.0")) // every lease fits both
	c.put("/coreos.com/network/red/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":20}}`)
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, h := range c.hosts {
		h.daemon = h.overlayd("--dataplane", modeUserspace, "--networks=blue,red", "--subnet-dir", dirs[i], "--etcd-endpoints", c.url)
	}
	var meters []*meter
	for i, name := range names {
		var pods [2]*pod
		for j, h := range c.hosts {
			pods[j] = h.on(dirs[j], name).pod(i, 0)
		}
		warmUp(t, pods[0], pods[1])
		for j := range pods {
			m, err := startMeter(pods[j].NS, pods[1-j].NS, pods[1-j].addr, 10*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			meters = append(meters, m)
		}
	}
	taken := c.hosts[0].grabsPort(8472)
	for i, last := range []string{"10.5.63.0", "10.5.62.0"} {
		c.put("/coreos.com/network/blue/config", blue(last))
		for _, h := range c.hosts {
			h.waitSessions(3 + i)
		}
		waitTraffic(t, meters[0], 50)
	}
	for i, m := range meters {
		if lost := m.finish(); lost > 0 {
			t.Errorf("flow %d: %d of %d datagrams are lost", i, lost, m.sent.Load())
		}
	}
	if n := taken(); n > 0 {
		t.Errorf("a local user got the UDP port %d times", n)
	}
}

// TestForwardsBeforeTheStoreHasListed: a userspace host that starts again forwards, by what it knew, while the store still lists
// what somebody has filled it with.
func TestForwardsBeforeTheStoreHasListed(t *testing.T) {
	t.Parallel()
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	r := newRelay(t, c.under, netip.MustParseAddrPort("192.0.2.1:2390"), netip.MustParseAddrPort(strings.TrimPrefix(c.url, "http://")))
	h, args := c.hosts[0], []string{"--dataplane", modeUserspace, "--etcd-endpoints", "http://192.0.2.1:2390"}
	c.hosts[1].up("--dataplane", modeKernel)
	h.up(args...)
	a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
	warmUp(t, a, b)
	for i := range 20 {
		c.put(fmt.Sprintf("%s10.5.%d.0-24?", subnets, 64+i), strings.Repeat("x", 1<<20))
	}
	h.daemon.stop(unix.SIGTERM)
	r.rate.Store(4 << 20)
	h.start(args...)
	eventually(t, patience, "a packet passes", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
	if text := h.daemon.text(); linesWith(text, "msg=ready") > 0 {
		t.Errorf("nothing passed before the daemon was ready:\n%s", text)
	}
	r.rate.Store(0)
	h.daemon.waitLog("msg=ready", patience)
	warmUp(t, a, b)
}

// waitSessions waits until the daemon is ready in its n-th session.
func (h *host) waitSessions(n int) {
	h.c.t.Helper()
	eventually(h.c.t, patience, fmt.Sprintf("session %d is ready", n), func() error {
		if got := linesWith(h.daemon.text(), "msg=ready"); got < n {
			return fmt.Errorf("%d were", got)
		}
		return nil
	})
}

// grabsPort tries to get a UDP port of the host again and again, as any local user can, until stop is called, which returns how
// often it did.
func (h *host) grabsPort(port uint16) (stop func() (times uint64)) {
	h.c.t.Helper()
	var got atomic.Uint64
	quit, ended := make(chan struct{}), make(chan error)
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.addr, port))
	go func() {
		ended <- h.Do(func() error {
			for {
				select {
				case <-quit:
					return nil
				default:
				}
				conn, err := net.ListenUDP("udp4", at)
				switch {
				case err == nil:
					got.Add(1)
					conn.Close()
				case !errors.Is(err, unix.EADDRINUSE):
					return err
				}
				time.Sleep(200 * time.Microsecond)
			}
		})
	}()
	return func() uint64 {
		close(quit)
		if err := <-ended; err != nil {
			h.c.t.Error(err)
		}
		return got.Load()
	}
}
