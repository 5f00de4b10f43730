//go:build upgrade

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReplaceVersion: daemons of earlier commits are replaced. Those that know the hand-over lose nothing, and one from before it
// what it has read. It is for make test-long: the commits have to be built, and are in no shallow clone.
func TestReplaceVersion(t *testing.T) {
	commits := os.Getenv("OVERLAYD_UPGRADE")
	if commits == "" {
		t.Fatal("OVERLAYD_UPGRADE names no commits: see bench/long")
	}
	alone(t)
	for commit := range strings.SplitSeq(commits, ",") {
		older := buildCommit(t, commit)
		for _, mode := range []string{modeUserspace, modeKernel} {
			t.Run(commit+" "+mode, func(t *testing.T) { replaceVersion(t, commit, older, mode) })
		}
	}
}

// replaceVersion replaces an older daemon by this version's, and, in kernel mode, that by an older one again.
func replaceVersion(t *testing.T, commit, older, mode string) {
	c := newCluster(t, 2, testNetwork)
	c.hosts[1].up("--dataplane", modeKernel)
	h := c.hosts[0]
	var lost, sent uint64
	for range replacements(t) {
		args := []string{"--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--dataplane", mode}
		before := startCommand(t, h.NS, commit, exec.Command(older, args...))
		before.waitLog("msg=ready", patience)
		a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
		warmUp(t, a, b)
		there, back := startUnboundedMeters(t, a, b)
		waitTraffic(t, there, 100)
		if mode == modeUserspace {
			h.up("--dataplane", mode, "--replace")
		} else { // the kernel forwards meanwhile
			before.stop(unix.SIGTERM)
			h.up("--dataplane", mode)
		}
		if code := before.wait(patience); code != 0 {
			t.Errorf("exit code %d of the daemon that was replaced", code)
		}
		waitTraffic(t, back, 100)
		if mode == modeKernel { // and back
			h.daemon.stop(unix.SIGTERM)
			before = startCommand(t, h.NS, commit, exec.Command(older, args...))
			before.waitLog("msg=ready", patience)
			waitTraffic(t, back, 100)
			before.stop(unix.SIGTERM)
		}
		lost += there.finish() + back.finish()
		sent += there.sent.Load() + back.sent.Load()
		if text := h.daemon.text(); strings.Contains(text, "packets are lost") {
			t.Errorf("logged:\n%s", text)
		}
		h.daemon.stop(unix.SIGTERM)
		if p := h.overlayd("cleanup", "--rules", "--subnet-file", h.subnetFile); p.wait(patience) != 0 { // a daemon that knows no guard cannot send through it
			t.Fatal(p.text())
		}
		for _, host := range c.hosts {
			host.Run("ip", "link", "del", "pod0")
		}
	}
	t.Logf("%d of %d datagrams lost in %d upgrades", lost, sent, replacements(t))
	limit := uint64(0)
	if commit == "5706a5c" && mode == modeUserspace { // it knows no hand-over
		limit = 10 * replacements(t)
	}
	if lost > limit {
		t.Errorf("%d datagrams lost, want at most %d", lost, limit)
	}
}

// buildCommit builds overlayd as it was.
func buildCommit(t *testing.T, commit string) (program string) {
	t.Helper()
	tree, archive := t.TempDir(), filepath.Join(t.TempDir(), "tree.tar")
	program = filepath.Join(t.TempDir(), "overlayd-"+commit)
	for _, args := range [][]string{
		{"git", "-C", "../..", "archive", "-o", archive, commit},
		{"tar", "-xf", archive, "-C", tree},
		{"go", "-C", tree, "build", "-o", program, "./cmd/overlayd"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return program
}
