package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/testbed"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// supervised is a daemon under a supervisor that keeps files for it, as systemd does.
type supervised struct {
	*testbed.Supervisor
	t *testing.T

	mu  sync.Mutex
	log bytes.Buffer
}

// unit returns a setting of the unit for systemd, which the supervisor goes by.
func unit(t *testing.T, setting string) string {
	t.Helper()
	b, err := os.ReadFile("../../deploy/systemd/overlayd.service")
	if err != nil {
		t.Fatal(err)
	}
	_, value, ok := strings.Cut(string(b), "\n"+setting+"=")
	if !ok {
		t.Fatalf("the unit has no %s", setting)
	}
	value, _, _ = strings.Cut(value, "\n")
	return value
}

// supervisorDelay is how long the supervisor waits after a crash.
func supervisorDelay(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(unit(t, "RestartSec"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// supervise starts overlayd on h under a supervisor, and waits until it is ready.
func (h *host) supervise(args ...string) *supervised {
	t := h.c.t
	t.Helper()
	s := &supervised{t: t}
	argv := append([]string{shipped(t), "--etcd-endpoints", h.c.url}, args...)
	if !strings.Contains(strings.Join(args, " "), "--subnet-dir") {
		argv = append(argv, "--subnet-file", h.subnetFile)
	}
	env := append(h.c.env(), asOverlayd+"=1", "GORACE=atexit_sleep_ms=0")
	room, err := strconv.Atoi(unit(t, "FileDescriptorStoreMax"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Supervisor, err = testbed.Supervise(t.TempDir(), argv, env, s, supervisorDelay(t), room, h.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", h.name, s.text())
		}
	})
	s.waitReady()
	return s
}

// shipped returns the program as it is shipped, which starts faster than this test's; with the race detector this test's.
func shipped(t *testing.T) string {
	t.Helper()
	if !raceEnabled {
		return staticBinary(t)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// Write implements io.Writer.
func (s *supervised) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *supervised) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// waitReady waits until the daemon that runs is ready.
func (s *supervised) waitReady() {
	s.t.Helper()
	_, ready := s.Runs()
	select {
	case <-ready:
	case <-time.After(patience):
		s.t.Fatalf("not ready:\n%s", s.text())
	}
}

// waitKept waits until the supervisor has files of all these names.
func (s *supervised) waitKept(names ...string) {
	s.t.Helper()
	eventually(s.t, patience, "the supervisor keeps the files", func() error {
		all := strings.Join(s.Files(), "\n")
		for _, name := range names {
			if !strings.Contains(all, name) {
				return fmt.Errorf("no %s in\n%s", name, all)
			}
		}
		return nil
	})
}

// again ends the daemon by a signal and waits until the next one is ready.
func (s *supervised) again(sig unix.Signal) {
	s.t.Helper()
	before, _ := s.Runs()
	if err := s.Signal(sig, sig != unix.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, patience, "the supervisor starts it again", func() error {
		if n, _ := s.Runs(); n == before {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	s.waitReady()
}

// queueHolds is for how long a TUN queue of 500 packets takes what a meter sends: a machine that takes longer to start a process
// loses the rest.
const queueHolds = 400 * time.Millisecond

// restarts is how often a supervised daemon is ended in a test.
func restarts(t *testing.T) int { return int(numberFrom(t, "OVERLAYD_RESTARTS", 2)) }

// TestSupervised: a supervisor that keeps files for a daemon makes a planned restart cost no packet, and a crash
// those that the daemon was about to send; what comes meanwhile arrives once the next daemon runs.
func TestSupervised(t *testing.T) {
	alone(t)
	for _, test := range []struct {
		mode string
		sig  unix.Signal
		may  uint64 // be lost, per restart
	}{
		{modeUserspace, unix.SIGTERM, 0},
		{modeUserspace, unix.SIGKILL, 1},
		{modeKernel, unix.SIGKILL, 0},
	} {
		t.Run(test.mode+" "+test.sig.String(), func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			s := h.supervise("--dataplane", test.mode, "--healthz-port", "8081")
			c.hosts[1].up("--dataplane", modeKernel)
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			kept := []string{"listener"}
			if test.mode == modeUserspace {
				kept = append(kept, "tun+flannel.1", "udp+192.0.2.2%3A8472")
				if !strings.Contains(s.text(), "no tunnel offload") {
					kept = append(kept, "uplink+192.0.2.2%3A8472")
				}
			}
			s.waitKept(kept...)
			subnet, files := h.gateway(), len(s.Files())
			there, back := startUnboundedMeters(t, a, b)
			waitTraffic(t, there, 100)
			var gaps []time.Duration
			for range restarts(t) {
				s.again(test.sig)
				waitTraffic(t, there, 200)
				waitTraffic(t, back, 0)
				gaps = append(gaps, time.Duration(max(there.gap.Swap(0), back.gap.Swap(0))))
			}
			slices.Sort(gaps)
			gap := gaps[len(gaps)-1]
			t.Logf("gaps: %v", gaps)
			lost, sent := there.finish()+back.finish(), there.sent.Load()+back.sent.Load()
			t.Logf("%d of %d datagrams lost, longest gap %s", lost, sent, gap)
			if lost > test.may*uint64(restarts(t)) && gap < queueHolds {
				t.Errorf("%d of %d datagrams lost in %d restarts", lost, sent, restarts(t))
			}
			// A machine that does nothing else takes 60 ms, and 90 in the longest of 400.
			if limit := supervisorDelay(t) + promised(200*time.Millisecond); test.mode == modeUserspace && gap > limit && !raceEnabled {
				t.Errorf("the longest gap is %s, want %s", gap, limit)
			}
			if got := h.gateway(); got != subnet {
				t.Errorf("subnet is %s, was %s", got, subnet)
			}
			if text := s.text(); strings.Contains(text, "cannot take over") || len(s.Files()) != files {
				t.Errorf("the supervisor has %d files, had %d", len(s.Files()), files)
			}
		})
	}
}

// TestSupervisedUnfit: whatever a supervisor hands over that does not fit costs one line, and the daemon works.
func TestSupervisedUnfit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		says   string
		change func(c *cluster, s *supervised) // between two daemons
	}{
		"another VNI": {"are not for this network", func(c *cluster, _ *supervised) {
			c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","VNI":7`, 1))
		}},
		"another port": {"are not for this network", func(c *cluster, _ *supervised) {
			c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","Port":8473`, 1))
		}},
		"a queue too many":  {"queues, not", putNull("file=tun+flannel.1&index=9&flags=3f&version=1")},
		"a strange name":    {"not overlayd's", putNull("stored")},
		"a dead TUN device": {"not a queue of a TUN device", func(c *cluster, _ *supervised) { c.hosts[0].Run("ip", "link", "del", "flannel.1") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			s := h.supervise("--dataplane", modeUserspace)
			s.waitKept("tun+flannel.1", "udp+192.0.2.2%3A8472")
			s.Between(func() { test.change(c, s) })
			s.again(unix.SIGKILL)
			if text := s.text(); linesWith(text, test.says) != 1 || linesWith(text, "level=ERROR") > 0 {
				t.Errorf("want one line with %q:\n%s", test.says, text)
			}
			c.hosts[1].up("--dataplane", modeKernel)
			warmUp(t, h.pod(0, 0), c.hosts[1].pod(0, 0))
			s.waitKept("tun+flannel.", "udp+192.0.2.2%3A847")
		})
	}
}

// TestSupervisedUplink: a supervisor keeps the uplink too, because a process that dies with it ends 25 ms later. The next daemon
// goes on with it, or nothing of it is left.
func TestSupervisedUplink(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(c *cluster) // between two daemons
		same   bool             // the device stays
	}{
		"it stays":       {func(*cluster) {}, true},
		"it was deleted": {func(c *cluster) { c.hosts[0].Run("ip", "link", "del", "ovl.up0") }, false},
		"it is down":     {func(c *cluster) { c.hosts[0].Run("ip", "link", "set", "ovl.up0", "down") }, true},
		"another port": {func(c *cluster) {
			c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","Port":8473`, 1))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			s := h.supervise("--dataplane", modeUserspace)
			if strings.Contains(s.text(), "no tunnel offload") {
				netnstest.Lacks(t, "kernel with the tunnel offload (Linux 6.17)")
			}
			s.waitKept("uplink+192.0.2.2%3A8472")
			before := h.uplink()
			s.Between(func() { test.change(c) })
			s.again(unix.SIGKILL)
			eventually(t, patience, "there is one uplink", func() error {
				if found := h.uplinks(); len(found) != 2 {
					return fmt.Errorf("found %v", found)
				}
				return nil
			})
			if after := h.uplink(); (after == before) != test.same {
				t.Errorf("the device has index %d, had %d", after, before)
			}
			s.waitKept("uplink+192.0.2.2%3A847")
			c.hosts[1].up("--dataplane", modeUserspace)
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			checkPair(t, h, a, c.hosts[1], b, 4<<20)
		})
	}
}

// putNull puts a file that is nothing into the store under a name.
func putNull(name string) func(*cluster, *supervised) {
	return func(c *cluster, s *supervised) {
		c.t.Helper()
		f, err := os.Open(os.DevNull)
		if err != nil {
			c.t.Fatal(err)
		}
		s.Put(name, f)
	}
}

// TestSupervisedNetworks: several networks of one daemon share a port, and lose nothing when it is restarted, by a
// supervisor or by a daemon that takes its place.
func TestSupervisedNetworks(t *testing.T) {
	alone(t)
	c := newCluster(t, 2, "")
	names := []string{"blue", "red"}
	c.put("/coreos.com/network/blue/config", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":10}}`)
	c.put("/coreos.com/network/red/config", `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":20}}`)
	dirs := []string{t.TempDir(), t.TempDir()}
	args := func(i int, mode string) []string {
		return []string{"--dataplane", mode, "--networks=blue,red", "--subnet-dir", dirs[i], "--healthz-port", "8081"}
	}
	s := c.hosts[0].supervise(args(0, modeUserspace)...)
	c.hosts[1].daemon = c.hosts[1].overlayd(append(args(1, modeUserspace), "--etcd-endpoints", c.url)...)
	var meters []*meter
	for i, name := range names {
		var pods [2]*pod
		for j, h := range c.hosts {
			pods[j] = h.on(dirs[j], name).pod(i, 0)
		}
		warmUp(t, pods[0], pods[1])
		there, back := startMeters(t, pods[0], pods[1])
		meters = append(meters, there, back)
	}
	traffic := func() {
		t.Helper()
		for _, m := range meters {
			waitTraffic(t, m, 100)
		}
	}
	s.waitKept("tun+flannel.10", "tun+flannel.20", "udp+192.0.2.2%3A8472", "listener")
	for range restarts(t) {
		traffic()
		s.again(unix.SIGTERM)
		traffic()
		before := c.hosts[1].daemon
		c.hosts[1].daemon = c.hosts[1].overlayd(append(args(1, modeUserspace), "--etcd-endpoints", c.url, "--replace")...)
		for _, name := range names {
			c.hosts[1].daemon.waitLog("msg=ready network="+name, patience)
		}
		if code := before.wait(patience); code != 0 {
			t.Errorf("exit code %d of the daemon that was replaced:\n%s", code, before.text())
		}
	}
	traffic()
	for i, m := range meters {
		if lost := m.finish(); lost > 0 {
			t.Errorf("%d of %d datagrams lost of flow %d, longest gap %s", lost, m.sent.Load(), i, time.Duration(m.gap.Load()))
		}
	}
	for name, text := range map[string]string{"supervised": s.text(), "replacing": c.hosts[1].daemon.text()} {
		if linesWith(text, "cannot take over")+linesWith(text, "level=ERROR") > 0 {
			t.Errorf("the %s daemon logged:\n%s", name, text)
		}
	}
}
