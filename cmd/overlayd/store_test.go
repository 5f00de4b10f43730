package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const subnets = "/coreos.com/network/subnets/"

// TestJunk: every kind of junk in the store is ignored with one log line that
// names it, costs no peer a packet, and the next good lease works at once.
func TestJunk(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 3, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			there, back := startMeters(t, a, b)

			own := strings.TrimSuffix(strings.TrimPrefix(c.hosts[0].key(), subnets), "-24")
			for _, junk := range junkLeases(own) {
				c.put(subnets+junk.key, junk.value)
			}
			for _, junk := range junkLeases(own) {
				// What is not below a subnet's key is named by its key.
				key, subnet := "key="+junk.key+" ", "subnet="+strings.Replace(junk.key, "-", "/", 1)+" "
				eventually(t, patience, "one log line names "+junk.key, func() error {
					if n := linesWith(c.hosts[0].daemon.text(), key) + linesWith(c.hosts[0].daemon.text(), subnet); n != 1 {
						return fmt.Errorf("%d lines do", n)
					}
					return nil
				})
			}
			// A good lease right behind the junk: host 2 answers by hand.
			peer := makePeer(t, c.hosts[2], c.hosts[0], "10.5.250.0", true)
			began := now(t)
			c.put(peer.key, peer.value)
			eventually(t, promised(2*time.Second), "the next good lease works", func() error { return echoWithin(a.NS, peer.addr, 56, 20*time.Millisecond) })
			if took := began.passed(t); took > promised(200*time.Millisecond) {
				t.Errorf("the next good lease worked after %s", took)
			}
			waitTraffic(t, there, 500)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
		})
	}
}

func linesWith(text, part string) (n int) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

type rawLease struct{ key, value string }

func junkLeases(own string) []rawLease {
	vxlan := func(ip, mac string) string {
		return fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, ip, mac)
	}
	return []rawLease{
		{"10.5.201.0-24", `x`},
		{"10.5.202.0-24", `{"PublicIP":`},
		{"10.5.203.0-24", strings.Repeat("[", 10_000)},
		{"10.5.204.0-24", `null`},
		{"garbage", vxlan("192.0.2.201", "0e:00:00:00:02:01")},
		{"10.5.300.0-24", vxlan("192.0.2.202", "0e:00:00:00:02:02")},
		{"172.31.0.0-16", vxlan("192.0.2.203", "0e:00:00:00:02:03")},
		{"192.0.2.0-25", vxlan("192.0.2.204", "0e:00:00:00:02:04")},
		{own + "-25", vxlan("192.0.2.205", "0e:00:00:00:02:05")},
		{"10.5.206.0-24", strings.Replace(vxlan("192.0.2.206", "0e:00:00:00:02:06"), `"vxlan"`, `"host-gw"`, 1)},
		{"10.5.207.0-24", vxlan("192.0.2.207", "01:00:5e:00:00:01")},
		{"10.5.208.0-24", vxlan("192.0.2.208", "ff:ff:ff:ff:ff:ff")},
		{"10.5.209.0-24", vxlan("127.0.0.1", "0e:00:00:00:02:09")},
		{"10.5.210.0-24", vxlan("224.0.0.1", "0e:00:00:00:02:10")},
		{"10.5.211.0-24", strings.Replace(vxlan("192.0.2.211", "0e:00:00:00:02:11"), `"VNI":1`, `"VNI":16777216`, 1)},
	}
}

// TestBadConfig: what the store contains never ends the daemon; the reason is
// logged, and a good config is taken up.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "")
	h := c.hosts[0]
	h.start("--dataplane", modeUserspace)
	for _, step := range []struct{ config, says string }{
		{"", "no network config in the store"},
		{`{`, "network config"},
		{`{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`, "udp"},
		{`{"Network":"10.5.0.0/29"}`, "10.5.0.0/29"},
		{`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"MTU":1300}}`, "EnableIPv6"},
		{`{"Network":"192.0.2.0/24"}`, "192.0.2.2"},
	} {
		if step.config != "" {
			c.put("/coreos.com/network/config", step.config)
		}
		h.daemon.waitLog(step.says, patience)
	}
	c.put("/coreos.com/network/config", testNetwork)
	h.daemon.waitLog("msg=ready", patience)
}

// TestSamePublicIP: a second live node with the same public IP is refused loudly,
// and the first one is not disturbed.
func TestSamePublicIP(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.hosts[0].up("--dataplane", modeUserspace, "--public-ip", "192.0.2.2")
	value := c.get(c.hosts[0].key())
	c.hosts[1].start("--dataplane", modeUserspace, "--public-ip", "192.0.2.2")
	c.hosts[1].daemon.waitLog("public IP is in use by another live node", patience)
	if got := c.get(c.hosts[0].key()); got != value {
		t.Errorf("the first node's lease is %s, was %s", got, value)
	}
	// The second one goes on as soon as the first has ended in good order.
	c.hosts[0].daemon.stop(unix.SIGTERM)
	c.hosts[1].daemon.waitLog("msg=ready", patience)
}

// TestLeaseLost: a lease that somebody else holds now is given up and logged, and the
// host gets another subnet.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeKernel)
	key, subnet := h.key(), h.gateway()
	taken := `{"PublicIP":"192.0.2.99","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:99"}}`
	c.put(key, taken)
	eventually(t, patience, "another subnet", func() error {
		if h.gateway() == subnet {
			return fmt.Errorf("still %s", subnet)
		}
		return nil
	})
	h.daemon.waitLog("lost", time.Second)
	if got := c.get(key); got != taken {
		t.Errorf("the other's lease is %s now", got)
	}
	if c.get(h.key()) == "" {
		t.Errorf("no lease on %s", h.key())
	}
}

// TestLeaseDeleted: a lease that was deleted by hand is put back.
func TestLeaseDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace)
	value := c.get(h.key())
	c.delete(h.key())
	eventually(t, patience, "the lease is back", func() error {
		if got := c.get(h.key()); got != value {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// TestDrain gives the lease back, with the daemon running and without, and leaves
// no subnet file behind that would hand out what is no longer ours.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	drain := func(subnetFile string) (int, string) {
		p := h.overlayd("drain", "--etcd-endpoints", c.url, "--subnet-file", subnetFile)
		return p.wait(patience), p.text()
	}
	given := func(key string) {
		t.Helper()
		if code, out := drain(h.subnetFile); code != 0 {
			t.Fatalf("exit code %d:\n%s", code, out)
		}
		if got := c.get(key); got != "" {
			t.Errorf("the lease is still there: %s", got)
		}
		if _, err := os.Stat(h.subnetFile); err == nil {
			t.Error("the subnet file is still there")
		}
	}
	h.up("--dataplane", modeKernel)
	key := h.key()
	if code, out := drain(filepath.Join(t.TempDir(), "other.env")); code != exitFailure || c.get(key) == "" {
		t.Errorf("drain beside a daemon with another subnet file: exit code %d:\n%s", code, out)
	}
	given(key)
	if code := h.daemon.wait(promised(time.Second)); code != 0 {
		t.Errorf("daemon: exit code %d after drain", code)
	}

	h.up("--dataplane", modeKernel)
	key = h.key()
	h.daemon.stop(unix.SIGKILL)
	given(key)
	given(key) // twice is not an error
}

// TestDrainWhileTheStoreIsAway: drain says why it takes long, and the daemon forwards until it can give its lease back.
func TestDrainWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	warmUp(t, a, b)
	h := c.hosts[0]
	key := h.key()
	there, back := startMeters(t, a, b)
	c.etcd.stop(unix.SIGKILL)
	p := h.overlayd("drain", "--subnet-file", h.subnetFile)
	if code := p.wait(drainTimeout + patience); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	for _, says := range []string{"cannot give its lease back yet: its store does not answer; it goes on trying", "stop the daemon with SIGTERM"} {
		if !strings.Contains(p.text(), says) {
			t.Errorf("drain does not say %q:\n%s", says, p.text())
		}
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	c.runEtcd()
	if code := h.daemon.wait(patience); code != 0 {
		t.Errorf("daemon: exit code %d", code)
	}
	c.waitEtcd()
	if got := c.get(key); got != "" {
		t.Errorf("the lease is still there: %s", got)
	}
}

// TestDrainWithoutConfig: a lease of an earlier run is given back by a daemon that
// waits for a network config.
func TestDrainWithoutConfig(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace)
	key := h.key()
	h.daemon.stop(unix.SIGTERM)
	c.put("/coreos.com/network/config", "{")
	h.start("--dataplane", modeUserspace).waitLog("waiting for the network config", patience)
	p := h.overlayd("drain", "--subnet-file", h.subnetFile)
	if code := p.wait(patience); code != 0 || c.get(key) != "" {
		t.Errorf("exit code %d, lease %q:\n%s", code, c.get(key), p.text())
	}
}

// TestDrainOfDualStackHost: without a daemon and without a network config that can be read, a host
// of both families has nothing to give back, and says so.
func TestDrainOfDualStackHost(t *testing.T) {
	for name, config := range map[string]string{"no config": "", "bad config": "{"} {
		t.Run(name, func(t *testing.T) {
			c := newClusterOn(t, []string{under4, under6}, 1, config)
			h := c.hosts[0]
			p := start(t, h.NS, "drain", []string{asOverlayd + "=1"}, "drain", "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile)
			if code := p.wait(20 * time.Second); code != 0 || !strings.Contains(p.text(), "nothing to give back") {
				t.Errorf("exit code %d:\n%s", code, p.text())
			}
		})
	}
}

// TestConfigOutOfReach: a config that no dataplane here can carry never ends the daemon.
func TestConfigOutOfReach(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10000000}}`)
	h := c.hosts[0]
	h.start("--dataplane", modeUserspace).waitLog("10000000", patience)
	c.put("/coreos.com/network/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`)
	h.daemon.waitLog("GBP", patience)
	c.put("/coreos.com/network/config", testNetwork)
	h.daemon.waitLog("msg=ready", patience)
}

// TestSecondDaemonOnOneDevice: a daemon with a subnet file of its own is refused
// beside one that serves the same device, and cleanup spares a device in service.
func TestSecondDaemonOnOneDevice(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeKernel)
	other := filepath.Join(t.TempDir(), "other.env")
	for _, args := range [][]string{
		{"--etcd-endpoints", c.url, "--subnet-file", other, "--dataplane", modeUserspace},
		{"cleanup", "--subnet-file", other},
	} {
		p := h.overlayd(args...)
		if code := p.wait(patience); code != exitFailure || !strings.Contains(p.text(), "flannel.1") {
			t.Errorf("%v: exit code %d:\n%s", args, code, p.text())
		}
	}
	if kind := hardwareAddr(t, h).String(); kind == "" {
		t.Error("the device is no vxlan device any more")
	}
	h.daemon.stop(unix.SIGTERM)
	p := h.overlayd("cleanup", "--subnet-file", h.subnetFile)
	if code := p.wait(patience); code != 0 || !strings.Contains(p.text(), "flannel.1") {
		t.Errorf("cleanup: exit code %d:\n%s", code, p.text())
	}
	p = h.overlayd("cleanup", "--subnet-file", h.subnetFile)
	if code := p.wait(patience); code != 0 || p.text() != "" {
		t.Errorf("second cleanup: exit code %d:\n%s", code, p.text())
	}
}
