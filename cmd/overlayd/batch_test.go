package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSchedulingPolicy: the threads of a daemon that forwards do not interrupt the programs whose packets they carry, unless somebody has
// chosen another policy for them.
func TestSchedulingPolicy(t *testing.T) {
	static := staticBinary(t) // as it is shipped: with cgo, which the race detector needs, it may not set its policy
	c := newCluster(t, 3, testNetwork)
	for i, test := range []struct {
		name, mode string
		set        []string // of chrt
		want       uint32
	}{
		{"userspace", modeUserspace, []string{"--other", "0"}, unix.SCHED_BATCH},
		{"userspace, set by others", modeUserspace, []string{"--rr", "1"}, unix.SCHED_RR},
		{"kernel", modeKernel, []string{"--other", "0"}, unix.SCHED_NORMAL},
	} {
		h := c.hosts[i]
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("chrt", append(test.set, static, "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--dataplane", test.mode)...)
			cmd.Env = c.env()
			p := startCommand(t, h.NS, test.name, cmd)
			p.waitLog("msg=ready", patience)
			for tid, policy := range policies(t, p.cmd.Process.Pid) {
				if policy != test.want {
					t.Errorf("thread %d has policy %d, want %d", tid, policy, test.want)
				}
			}
		})
	}
}

// policies returns the scheduling policy of each thread of a process.
func policies(t *testing.T, pid int) map[int]uint32 {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of %d: %v, %v", pid, tasks, err)
	}
	all := map[int]uint32{}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		a, err := unix.SchedGetAttr(tid, 0)
		if err == unix.ESRCH { // it has ended
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all[tid] = a.Policy
	}
	return all
}
