package main

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCrashIsNoUsageError: with the environment of the unit, a daemon that crashes does not end with the exit code after which systemd
// leaves it alone.
func TestCrashIsNoUsageError(t *testing.T) {
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGABRT, unix.SIGSEGV} {
		h := newCluster(t, 1, testNetwork).hosts[0]
		p := start(t, h.NS, h.name, append(h.c.env(), asOverlayd+"=1", unit(t, "Environment")), "--etcd-endpoints", h.c.url, "--subnet-file", h.subnetFile)
		p.waitLog("msg=ready", patience)
		if code := p.stop(sig); code != -1 || !p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("%s: exit code %d, want an end by a signal:\n%.200s", unix.SignalName(sig), code, p.text())
		}
	}
}
