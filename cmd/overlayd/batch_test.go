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
	if raceEnabled {
		t.Skip("needs a build without cgo, as it is shipped")
	}
	c := newCluster(t, 3, testNetwork)
	for i, test := range []struct {
		name, mode string
		of         uint32 // what it is started with
		want       uint32
	}{
		{"userspace", modeUserspace, unix.SCHED_NORMAL, unix.SCHED_BATCH},
		{"userspace, set by others", modeUserspace, unix.SCHED_RR, unix.SCHED_RR},
		{"kernel", modeKernel, unix.SCHED_NORMAL, unix.SCHED_NORMAL},
	} {
		h := c.hosts[i]
		t.Run(test.name, func(t *testing.T) {
			args := []string{"--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--dataplane", test.mode}
			if test.of == unix.SCHED_RR {
				args = append([]string{"chrt", "--rr", "1", shipped(t)}, args...)
			} else {
				args = append([]string{"chrt", "--other", "0", shipped(t)}, args...)
			}
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(c.env(), asOverlayd+"=1")
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
