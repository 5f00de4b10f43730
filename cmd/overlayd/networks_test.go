package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// on is the host as one of several networks of its daemon has it.
func (h *host) on(dir, network string) *host {
	n := *h
	n.subnetFile = filepath.Join(dir, network+".env")
	return &n
}

// TestNetworks: one daemon serves several networks, each with its own store, device and
// subnet file; one that is added is served within 2 s, one that goes leaves nothing, and the
// others notice neither.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, "")
			config := func(network, value string) { c.put("/coreos.com/network/"+network+"/config", value) }
			config("red", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":11}}`)
			config("bad", `{"Network":"10.5.0.0/33"}`)
			dirs := []string{t.TempDir(), t.TempDir()}
			for i, h := range c.hosts {
				h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", mode,
					"--watch-networks", "--subnet-dir", dirs[i], "--healthz-port", "8081", "--ip-masq")
			}
			red := [2]*host{c.hosts[0].on(dirs[0], "red"), c.hosts[1].on(dirs[1], "red")}
			for _, h := range red {
				h.daemon.waitLog("msg=ready network=red", patience)
			}
			a, b := red[0].pod(0, 0), red[1].pod(0, 0)
			warmUp(t, a, b)
			there, back := startMeters(t, a, b)
			rules := c.hosts[0].rules()
			config("overlap", `{"Network":"10.5.64.0/18","Backend":{"Type":"vxlan","VNI":13}}`)
			for _, h := range red {
				h.daemon.waitLog("10.5.64.0/18 overlaps 10.5.0.0/16 of network red", patience)
			}

			config("blue", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":12}}`)
			blue := [2]*host{c.hosts[0].on(dirs[0], "blue"), c.hosts[1].on(dirs[1], "blue")}
			for _, h := range blue {
				h.daemon.waitLog("msg=ready network=blue", promised(2*time.Second))
			}
			x, y := blue[0].pod(1, 0), blue[1].pod(1, 0)
			warmUp(t, x, y)
			for _, err := range []error{sendTCP(a.NS, b.NS, b.addr, 10<<20), sendTCP(x.NS, y.NS, y.addr, 10<<20)} {
				if err != nil {
					t.Error(err)
				}
			}
			c.delete("/coreos.com/network/blue/config")
			for i, h := range c.hosts {
				eventually(t, promised(2*time.Second), "blue is gone", func() error {
					if _, err := os.Stat(filepath.Join(dirs[i], "blue.env")); err == nil {
						return fmt.Errorf("its subnet file is left")
					}
					return h.Do(func() error {
						if _, err := netlink.LinkByName("flannel.12"); err == nil {
							return fmt.Errorf("flannel.12 is left")
						}
						return nil
					})
				})
			}
			eventually(t, promised(2*time.Second), "the rules of the other network are as before", func() error { // they name the VNIs of the host
				if got := c.hosts[0].rules(); got != rules {
					return fmt.Errorf("rules\n%s\nbefore\n%s", got, rules)
				}
				return nil
			})
			waitTraffic(t, there, 200)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams of the other network lost", lost)
			}
			// A network that comes back has the same subnet.
			was := x.addr
			config("blue", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":12}}`)
			if got := blue[0].gateway().Masked(); !got.Contains(was) {
				t.Errorf("blue has %s again, a pod had %s", got, was)
			}
			if n := linesWith(c.hosts[0].daemon.text(), "10.5.0.0/33"); n == 0 {
				t.Errorf("nothing logged about the bad config:\n%s", c.hosts[0].daemon.text())
			}

			drain := c.hosts[0].overlayd("drain", "--watch-networks", "--subnet-dir", dirs[0], "--etcd-endpoints", c.url)
			if code := drain.wait(patience); code != 0 {
				t.Errorf("drain: exit code %d: %s", code, drain.text())
			}
			if code := c.hosts[0].daemon.wait(promised(time.Second)); code != 0 {
				t.Errorf("drained daemon: exit code %d", code)
			}
			if code := c.hosts[1].daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("stopped daemon: exit code %d", code)
			}
		})
	}
}

// TestDaemonsOnOneHost: two daemons with a prefix, VNI, port and subnet file each do not disturb
// each other, at start, at work and in cleanup.
func TestDaemonsOnOneHost(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			c.put("/second/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2,"Port":8473}}`)
			a, b := c.upPair([2]string{mode, mode}, "--ip-masq")
			there, back := startMeters(t, a, b)
			var second [2]*host
			for i, h := range c.hosts {
				two := *h
				second[i] = &two
				two.subnetFile = filepath.Join(t.TempDir(), "second.env")
				two.name = fmt.Sprint("second on ", h.name)
				two.up("--dataplane", mode, "--etcd-prefix", "/second", "--ip-masq")
			}
			x, y := second[0].pod(1, 0), second[1].pod(1, 0)
			warmUp(t, x, y)
			second[0].daemon.stop(unix.SIGTERM)
			p := c.hosts[0].overlayd("cleanup", "--vni", "2", "--subnet-file", second[0].subnetFile)
			if code := p.wait(patience); code != 0 || !strings.Contains(p.text(), second[0].subnetFile) {
				t.Errorf("cleanup of the second: exit code %d: %s", code, p.text())
			}
			c.hosts[0].Must(func() error {
				if _, err := netlink.LinkByName("flannel.2"); err == nil {
					return fmt.Errorf("flannel.2 is left")
				}
				return nil
			})
			p = c.hosts[0].overlayd("cleanup", "--vni", "1", "--subnet-file", second[0].subnetFile)
			if code := p.wait(patience); code != exitFailure || !strings.Contains(p.text(), "flannel.1") {
				t.Errorf("cleanup of the first, which runs: exit code %d: %s", code, p.text())
			}
			waitTraffic(t, there, 200)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams of the first network lost", lost)
			}
		})
	}
}

// TestNetworksChangeDataplane: a daemon of two networks on one port goes from the kernel dataplane to the
// userspace one and back, twice. Each network is ready within 2 s of each start, although the vxlan
// device of either held the port, keeps its subnet, and its pods reach those of a host that stays.
func TestNetworksChangeDataplane(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "")
	names := []string{"blue", "red"}
	c.put("/coreos.com/network/blue/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10}}`)
	c.put("/coreos.com/network/red/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":20}}`)
	dirs := []string{t.TempDir(), t.TempDir()}
	start := func(i int, mode string) {
		h, began := c.hosts[i], now(c.t)
		h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", mode, "--networks=blue,red", "--subnet-dir", dirs[i])
		for _, name := range names {
			h.daemon.waitLog("msg=ready network="+name, patience)
		}
		took := began.passed(c.t)
		t.Logf("%s: both ready after %s", mode, took.Round(time.Millisecond))
		if took > promised(2*time.Second) && !raceEnabled {
			t.Errorf("%s: ready after %s, want 2s at most:\n%s", mode, took, h.daemon.text())
		}
	}
	for i := range c.hosts {
		start(i, modeKernel)
	}
	var pods [2][2]*pod // by network and host
	for i, name := range names {
		for j, h := range c.hosts {
			pods[i][j] = h.on(dirs[j], name).pod(i, 0)
		}
		warmUp(t, pods[i][0], pods[i][1])
	}
	for _, mode := range []string{modeUserspace, modeKernel, modeUserspace} {
		if code := c.hosts[0].daemon.stop(unix.SIGTERM); code != 0 {
			t.Errorf("exit code %d", code)
		}
		start(0, mode)
		for i, name := range names {
			if got := c.hosts[0].on(dirs[0], name).gateway().Masked(); !got.Contains(pods[i][0].addr) {
				t.Errorf("%s: %s has subnet %s, a pod has %s", mode, name, got, pods[i][0].addr)
			}
			warmUp(t, pods[i][0], pods[i][1])
		}
		eventually(t, patience, "no route is held any more", func() error {
			if held := c.hosts[0].Run("ip", "route", "show", "type", "blackhole"); held != "" {
				return fmt.Errorf("%s", held)
			}
			return nil
		})
	}
}
