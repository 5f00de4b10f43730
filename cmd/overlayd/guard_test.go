package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/dataplane"
)

// TestGuard: the guard is there, root switches it off and on while the daemon goes on, and without a daemon what is left of
// it can be removed.
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			h := c.hosts[0]
			run := func(want int, args ...string) string {
				t.Helper()
				p := h.overlayd(append([]string{"guard", "--subnet-file", h.subnetFile}, args...)...)
				if code := p.wait(patience); code != want {
					t.Errorf("guard %q: exit code %d, want %d: %s", args, code, want, p.text())
				}
				return p.text()
			}
			table := dataplane.GuardTable(1)
			there := func() bool { return strings.Contains(h.rules(), table) }
			if out := run(0); !strings.HasPrefix(out, "guard on") || !there() {
				t.Errorf("%s\n%s", out, h.rules())
			}
			if out := run(0, "off"); !strings.HasPrefix(out, "guard off") || there() {
				t.Errorf("%s\n%s", out, h.rules())
			}
			if out := run(0); !strings.HasPrefix(out, "guard off") {
				t.Error(out)
			}
			if err := echo(a.NS, b.addr, 56); err != nil {
				t.Error(err)
			}
			_, status := overlayd(t, "status", "--subnet-file", h.subnetFile)
			if !strings.Contains(status, "overlayd guard on") || mode == modeKernel && !strings.Contains(status, "source check off") {
				t.Errorf("status says nothing:\n%s", status)
			}
			if out := run(0, "on"); !strings.HasPrefix(out, "guard on") || !there() {
				t.Errorf("%s\n%s", out, h.rules())
			}
			if err := echo(a.NS, b.addr, 56); err != nil {
				t.Error(err)
			}
			run(exitUsage, "up")
			if err := os.Chmod(socketDir(t, h), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(admin.Path(h.subnetFile), 0o666); err != nil {
				t.Fatal(err)
			}
			foreign := exec.Command("/proc/self/exe", "guard", "off", "--subnet-file", h.subnetFile)
			foreign.Env = append(os.Environ(), asOverlayd+"=1")
			foreign.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			if out, err := foreign.CombinedOutput(); err == nil || !there() {
				t.Errorf("another user may: %s", out)
			}
			h.daemon.stop(unix.SIGTERM)
			run(exitNoDaemon, "on")
			if out := run(0, "off"); !strings.Contains(out, "removed table inet "+table) || there() {
				t.Errorf("%s\n%s", out, h.rules())
			}
		})
	}
}
