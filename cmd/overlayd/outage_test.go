package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRestartWithoutEtcd: while etcd is away, or takes connections and says nothing, a daemon that is killed and started again forwards as before.
// It is ready when etcd is back.
func TestRestartWithoutEtcd(t *testing.T) {
	for name, tt := range map[string]struct {
		mode   string
		signal unix.Signal // to etcd
	}{
		"kernel":            {modeKernel, unix.SIGKILL},
		"userspace":         {modeUserspace, unix.SIGKILL},
		"userspace, silent": {modeUserspace, unix.SIGSTOP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b := leasesKept(t, tt.mode)
			h := c.hosts[0]
			subnet, value := h.gateway(), c.get(h.key())
			c.etcd.cmd.Process.Signal(tt.signal)
			h.daemon.stop(unix.SIGKILL)
			h.start("--dataplane", tt.mode)
			eventually(t, promised(2*time.Second), "pods reach each other", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
			h.daemon.waitLog("going on with that of the last session", patience)
			if n := linesWith(h.daemon.text(), "msg=ready"); n > 0 {
				t.Error("ready without etcd")
			}
			if tt.signal == unix.SIGKILL {
				c.runEtcd()
			}
			c.etcd.cmd.Process.Signal(unix.SIGCONT)
			h.daemon.waitLog("msg=ready", patience)
			if got := c.get(h.key()); got != value || h.gateway() != subnet {
				t.Errorf("lease is %s of %s, was %s of %s", got, h.gateway(), value, subnet)
			}
			warmUp(t, a, b)
		})
	}
}

// TestConfigChangedInOutage: a daemon that has started without etcd takes over another network config when etcd is back.
func TestConfigChangedInOutage(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c, a, b := leasesKept(t, mode)
			h := c.hosts[0]
			h.daemon.stop(unix.SIGKILL)
			c.put("/coreos.com/network/config", vxlanConfig(`,"VNI":7`))
			c.hosts[1].daemon.waitLog("vni=7", patience)
			c.etcd.cmd.Process.Signal(unix.SIGSTOP)
			h.start("--dataplane", mode)
			h.daemon.waitLog("vni=1", patience)
			c.etcd.cmd.Process.Signal(unix.SIGCONT)
			h.daemon.waitLog("vni=7", patience)
			h.daemon.waitLog("msg=ready", patience)
			warmUp(t, a, b)
		})
	}
}

// leasesKept is a cluster of two hosts, of which the first one has written the lease of the other one to its leases file, with a pod on each.
func leasesKept(t *testing.T, mode string) (c *cluster, a, b *pod) {
	t.Helper()
	c = newCluster(t, 2, testNetwork)
	a, b = c.upPair([2]string{mode, mode})
	eventually(t, patience, "the leases are in the file", func() error {
		return hasLine(c.hosts[0].subnetFile+".leases", strings.TrimPrefix(c.hosts[1].key(), subnets))
	})
	return c, a, b
}

// TestTUNDeletedWithoutEtcd: while etcd is away, a TUN device that somebody deletes is made again, too.
func TestTUNDeletedWithoutEtcd(t *testing.T) {
	for name, signal := range map[string]unix.Signal{"away": unix.SIGKILL, "silent": unix.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b := leasesKept(t, modeUserspace)
			h := c.hosts[0]
			c.etcd.cmd.Process.Signal(signal)
			h.daemon.waitLog("etcd", patience)
			h.Run("ip", "link", "del", "flannel.1")
			eventually(t, promised(3*time.Second), "pods reach each other", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
		})
	}
}

// TestConfigBeforeOutage: what a daemon goes on with while etcd is away is the config that was in force last, however short a time before it ended.
func TestConfigBeforeOutage(t *testing.T) {
	for name, tt := range map[string]struct{ config, says, has string }{
		"another VNI": {`,"VNI":7`, "msg=dataplane mode=kernel vni=7", "mtu 1450"},
		"another MTU": {`,"MTU":1300`, "msg=MTU overlay=1250", "mtu 1250"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b := leasesKept(t, modeKernel)
			c.put("/coreos.com/network/config", vxlanConfig(tt.config))
			for _, h := range c.hosts {
				h.daemon.waitLog(tt.says, patience)
			}
			warmUp(t, a, b)
			h := c.hosts[0]
			c.etcd.cmd.Process.Signal(unix.SIGSTOP)
			h.daemon.stop(unix.SIGKILL)
			device := h.Run("ip", "-br", "link", "show", "type", "vxlan")
			h.start("--dataplane", modeKernel)
			h.daemon.waitLog("going on with that of the last session", patience)
			h.daemon.waitLog("adopted existing device", patience)
			if got := h.Run("ip", "-br", "link", "show", "type", "vxlan"); got != device {
				t.Errorf("devices %q, were %q", got, device)
			}
			if got := h.Run("ip", "link", "show", "type", "vxlan"); !strings.Contains(got, tt.has) {
				t.Errorf("want %s: %s", tt.has, got)
			}
			warmUp(t, a, b)
		})
	}
}

// TestDrainWithoutEtcd: a daemon that has started without etcd, and is to drain, forwards until it has given its lease back.
func TestDrainWithoutEtcd(t *testing.T) {
	t.Parallel()
	c, a, b := leasesKept(t, modeUserspace)
	h := c.hosts[0]
	key := h.key()
	c.etcd.cmd.Process.Signal(unix.SIGKILL)
	h.daemon.stop(unix.SIGKILL)
	h.start("--dataplane", modeUserspace)
	warmUp(t, a, b)
	h.daemon.cmd.Process.Signal(unix.SIGUSR1)
	h.daemon.waitLog("give lease back: trying again", patience)
	for range 10 {
		if err := echoWithin(a.NS, b.addr, 56, time.Second); err != nil {
			t.Error(err)
		}
	}
	c.runEtcd()
	if code := h.daemon.wait(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	c.waitEtcd()
	if got := c.get(key); got != "" {
		t.Errorf("the lease is still there: %s", got)
	}
}
