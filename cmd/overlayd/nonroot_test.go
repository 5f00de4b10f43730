package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// startAs starts overlayd on a host as a user with CAP_NET_ADMIN and CAP_NET_RAW alone, for whom /dev/net/tun has mode 0600.
func startAs(t *testing.T, h *host, args ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "nonroot") // t.TempDir is below a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	h.subnetFile = filepath.Join(dir, "subnet.env")
	program := filepath.Join(dir, "overlayd") // the test binary is in a directory of root's
	if err := os.Link(staticBinary(t), program); err != nil {
		t.Fatal(err)
	}
	script := `mount -t tmpfs none /dev/net && mknod -m 600 /dev/net/tun c 10 200 &&
		exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps +net_admin,+net_raw --ambient-caps +net_admin,+net_raw "$0" "$@"`
	args = append([]string{"-m", "sh", "-c", script, program, "--etcd-endpoints", h.c.url, "--subnet-file", h.subnetFile}, args...)
	h.daemon = startCommand(t, h.NS, h.name, exec.Command("unshare", args...))
	return h.daemon
}

// TestNonRoot: a user with the capabilities gets the kernel dataplane, and nothing is claimed that the user cannot see. The
// error of a /dev/net/tun that the user may not open says its mode.
func TestNonRoot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	kernel := startAs(t, c.hosts[0], "--dataplane", modeKernel, "--ip-masq")
	kernel.waitLog("msg=ready", patience)
	kernel.waitLog("it is not known whether iptables-legacy drops packets of the overlay", patience)
	if text := kernel.text(); strings.Contains(text, "legacy iptables tables are in use") {
		t.Error(text)
	}
	userspace := startAs(t, c.hosts[1], "--dataplane", modeUserspace)
	if code := userspace.wait(patience); code != exitFailure || !strings.Contains(userspace.text(), "open /dev/net/tun, whose mode is -rw-------, as user 65534") ||
		!strings.Contains(userspace.text(), "run overlayd as root") || strings.Contains(userspace.text(), "--device") {
		t.Errorf("exit code %d", code)
	}
}
