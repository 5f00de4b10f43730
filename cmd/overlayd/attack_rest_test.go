package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// TestAttackRestartInFlood: a daemon that is killed while somebody writes junk is ready again soon.
func TestAttackRestartInFlood(t *testing.T) {
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	modes := [2]string{modeKernel, modeUserspace}
	a, b := c.upPair(modes)
	quit, done := make(chan struct{}), make(chan int)
	f := &fuzzer{Rand: rand.New(rand.NewPCG(1, 2)), hosts: []string{"192.0.2.9"}, own: []string{"10.5.77.0"}, macs: []string{"0e:00:00:00:00:09"}}
	go func() {
		n := 0
		for ; ; n += 100 {
			select {
			case <-quit:
				done <- n
				return
			default:
			}
			var ops []clientv3.Op
			for i := range 100 {
				if i%2 == 0 {
					k, v := refusedLease(n/2 + i)
					ops = append(ops, clientv3.OpPut(subnets+k, v))
				} else {
					ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%d-%s", subnets, n+i, strings.Repeat("x", 200)), f.value()))
				}
			}
			if n > 60_000 { // over again
				n = 0
			}
			seen := map[string]bool{}
			kept := ops[:0]
			for _, op := range ops {
				if k := string(op.KeyBytes()); !seen[k] {
					seen[k] = true
					kept = append(kept, op)
				}
			}
			c.client.Txn(t.Context()).Then(kept...).Commit()
		}
	}()
	time.Sleep(3 * time.Second)
	for round := range 4 {
		h := c.hosts[round%2]
		h.daemon.stop(unix.SIGKILL)
		began := time.Now()
		h.up("--dataplane", modes[round%2])
		t.Logf("%s: ready after %s, %d kB, %d lines", modes[round%2], time.Since(began), h.daemon.peak(), strings.Count(h.daemon.text(), "\n"))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("ready after %s", took)
		}
		warmUp(t, a, b)
		time.Sleep(time.Second)
		if h.daemon.peak() > maxResident {
			t.Errorf("%d kB", h.daemon.peak())
		}
	}
	close(quit)
	<-done
}

// TestAttackPids: nobody can start a thread any more, as when a user has all process ids.
func TestAttackPids(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			group := "/sys/fs/cgroup/pids/attack4" + mode
			if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
				group = "/sys/fs/cgroup/attack4" + mode
				os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+pids"), 0o600)
			}
			if err := os.MkdirAll(group, 0o755); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { os.Remove(group) })
			if _, err := os.Stat(filepath.Join(group, "pids.max")); err != nil {
				t.Skip(err)
			}
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel}, "--ip-masq")
			h := c.hosts[0]
			pid := h.daemon.cmd.Process.Pid
			if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o600); err != nil {
				t.Skip(err)
			}
			os.WriteFile(filepath.Join(group, "pids.max"), []byte("1"), 0o600)
			there, back := startMeters(t, a, b)
			for i := range 3 {
				c.put(storePrefix+"config", strings.Replace(testNetwork, `{`, fmt.Sprintf(`{"EnableNFTables":%v,`, i%2 == 0), 1))
				time.Sleep(2 * time.Second)
			}
			select {
			case <-h.daemon.done:
				t.Errorf("the daemon has ended: %v", h.daemon.err)
			default:
			}
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			t.Logf("%d sessions", linesWith(h.daemon.text(), "msg=ready"))
		})
	}
}
