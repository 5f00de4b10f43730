package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestKillKernel: a kernel-mode daemon that is killed under traffic and started
// again costs no packet, keeps its subnet and writes nothing to the kernel.
func TestKillKernel(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeKernel, modeKernel})
	subnet := c.hosts[0].gateway()
	there, back := startMeters(t, a, b)
	heard := listen(t, c.hosts[0])

	c.hosts[0].daemon.stop(unix.SIGKILL)
	waitTraffic(t, there, 500)
	c.hosts[0].up("--dataplane", modeKernel)
	waitTraffic(t, there, 500)

	if events := heard.events(t); len(events) > 0 {
		t.Errorf("the restart changed the kernel: %q", events)
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	if got := c.hosts[0].gateway(); got != subnet {
		t.Errorf("subnet is %s after the restart, was %s", got, subnet)
	}
}

// TestKillUserspace: the userspace dataplane is back within a second of its
// restart, with the same subnet, and the peer notices nothing in the store.
func TestKillUserspace(t *testing.T) {
	alone(t)
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	subnet, value := c.hosts[0].gateway(), c.get(c.hosts[0].key())
	there, back := startUnboundedMeters(t, a, b)

	c.hosts[0].daemon.stop(unix.SIGKILL)
	sent := there.sent.Load()
	eventually(t, patience, "traffic goes on being sent", func() error { return above(there.sent.Load(), sent+200) })
	before := there.received.Load()
	began := now(t)
	c.hosts[0].start("--dataplane", modeUserspace)
	eventually(t, patience, "traffic arrives again", func() error { return above(there.received.Load(), before) })
	if took := began.passed(t); took > promised(time.Second) {
		t.Errorf("traffic came back %s after the restart", took)
	}
	there.finish()
	back.finish()
	c.hosts[0].daemon.waitLog("msg=ready", patience)
	if got := c.hosts[0].gateway(); got != subnet {
		t.Errorf("subnet is %s after the restart, was %s", got, subnet)
	}
	if got := c.get(c.hosts[0].key()); got != value {
		t.Errorf("lease is %s after the restart, was %s", got, value)
	}
}

// TestPeerRemovedWhileDown: what a peer left in the kernel goes at the next start.
func TestPeerRemovedWhileDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.put("/coreos.com/network/subnets/10.5.77.0-24",
		`{"PublicIP":"192.0.2.77","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:77"}}`)
	for _, h := range c.hosts {
		h.up("--dataplane", modeKernel)
	}
	eventually(t, patience, "both peers programmed", func() error {
		return counts(objects(t, c.hosts[0]), 2)
	})
	c.hosts[0].daemon.stop(unix.SIGKILL)
	c.delete("/coreos.com/network/subnets/10.5.77.0-24")
	c.hosts[0].up("--dataplane", modeKernel)
	// What the daemon remembers of the other it keeps for a while: the store may have lost it.
	eventually(t, patience, "one peer programmed", func() error { return counts(objects(t, c.hosts[0]), 1) })
}

// TestKilledBeforeItTakesPlace: a device that was to take the place of another when its daemon was killed is in
// nobody's way, whichever dataplane comes next, and goes.
func TestKilledBeforeItTakesPlace(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		c := newCluster(t, 1, testNetwork)
		h := c.hosts[0]
		for _, command := range []string{
			"link add ovl.1 type vxlan id 1 local 192.0.2.2 dev eth0 dstport 8472", "link set ovl.1 alias overlayd up",
			"tuntap add ovl.t1 mode tun multi_queue vnet_hdr", // not even marked
		} {
			h.Run("ip", strings.Fields(command)...)
		}
		h.up("--dataplane", mode)
		if links := h.Run("ip", "-br", "link"); strings.Contains(links, "ovl.1") || strings.Contains(links, "ovl.t1") {
			t.Errorf("%s: still there:\n%s", mode, links)
		}
	}
}

// counts wants n of each kind of object.
func counts(o kernelObjects, n int) error {
	for _, s := range [][]string{o.routes, o.neighbours, o.fdb, o.nexthops} {
		if len(s) != n {
			return fmt.Errorf("want %d of each object: %q", n, o)
		}
	}
	return nil
}

// TestSwitchDataplane: a restart with the other dataplane keeps the subnet and works.
func TestSwitchDataplane(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.hosts[1].up("--dataplane", modeKernel)
	c.hosts[0].up("--dataplane", modeKernel)
	subnet := c.hosts[0].gateway()
	a, b := c.hosts[0].pod(0, 0), c.hosts[1].pod(0, 0)
	for _, mode := range []string{modeUserspace, modeKernel, modeUserspace, modeAuto} {
		if code := c.hosts[0].daemon.stop(unix.SIGTERM); code != 0 {
			t.Fatalf("exit code %d at SIGTERM", code)
		}
		c.hosts[0].up("--dataplane", mode)
		if got := c.hosts[0].gateway(); got != subnet {
			t.Fatalf("%s: subnet %s, was %s", mode, got, subnet)
		}
		eventually(t, patience, mode+" reaches the other pod", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
		checkPair(t, c.hosts[0], a, c.hosts[1], b, 4<<20)
	}
}

// TestStop: SIGTERM stops within a second with exit code 0; the kernel dataplane
// goes on without the daemon.
func TestStop(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			began := now(t)
			code := c.hosts[0].daemon.stop(unix.SIGTERM)
			if took := began.passed(t); code != 0 || took > promised(time.Second) {
				t.Fatalf("exit code %d after %s", code, took)
			}
			if mode == modeKernel {
				if err := echo(a.NS, b.addr, 56); err != nil {
					t.Errorf("after the stop: %v", err)
				}
			}
			if c.get(c.hosts[0].key()) == "" {
				t.Error("the lease is gone")
			}
		})
	}
}

// TestUnderlayRecreated: an underlay link that goes and comes again under another
// index, as a re-plugged NIC does, is found by either dataplane.
func TestUnderlayRecreated(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			a, b := c.upPair([2]string{mode, modeKernel})
			subnet := h.gateway()
			h.Must(func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			})
			netnstest.Plug(c.under, "again", h.NS, "192.0.2.2/24")
			h.DefaultRoute("192.0.2.1")
			eventually(t, patience, "pods reach each other again", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
			if got := h.gateway(); got != subnet {
				t.Errorf("subnet %s, was %s", got, subnet)
			}
		})
	}
}

func warmUp(t *testing.T, a, b *pod) {
	t.Helper()
	eventually(t, patience, "pods reach each other", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
}

// queueTakes is how many datagrams of a meter may be on their way in tests in which none may be lost. A TUN queue holds 500: if the machine does
// not run a daemon for half a second, what overflows the queue is not the daemon's loss.
const queueTakes = 400

// startMeters sends a datagram each millisecond from a to b and from b to a. It is for tests in which none may be lost.
func startMeters(t *testing.T, a, b *pod) (there, back *meter) {
	t.Helper()
	there, back = startUnboundedMeters(t, a, b)
	for _, m := range []*meter{there, back} {
		m.most.Store(queueTakes)
	}
	return there, back
}

// startUnboundedMeters is for tests in which datagrams are lost: it sends whatever becomes of them.
func startUnboundedMeters(t *testing.T, a, b *pod) (there, back *meter) {
	t.Helper()
	there, err := startMeter(a.NS, b.NS, b.addr, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if back, err = startMeter(b.NS, a.NS, a.addr, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	return there, back
}

// waitTraffic returns when n more datagrams have arrived.
func waitTraffic(t *testing.T, m *meter, n uint64) {
	t.Helper()
	want := m.received.Load() + n
	eventually(t, patience, "traffic arrives", func() error { return above(m.received.Load(), want) })
}

func above(got, limit uint64) error {
	if got > limit {
		return nil
	}
	return fmt.Errorf("%d, want more than %d", got, limit)
}
