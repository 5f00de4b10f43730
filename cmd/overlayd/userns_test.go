package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// unprivilegedID is the first of the machine's user and group IDs that the user
// namespace has, root being the first. None has any right outside.
const unprivilegedID = 100000

// TestUserNamespace: overlayd without real root, as in a rootless container: in a
// user namespace with a network namespace of its own. CAP_NET_ADMIN is that of
// the user namespace, which is refused SO_RCVBUFFORCE among others.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	requireUserNamespaces(t)
	static := staticBinary(t)
	for _, mode := range []string{modeUserspace, modeAuto} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			c.hosts[0].up("--dataplane", modeKernel)
			c.hosts[1].up("--dataplane", modeUserspace)
			h := c.unprivilegedHost(static, "--dataplane", mode)
			h.daemon.waitLog("msg=ready", patience)
			if uid := h.daemon.uid(); uid != unprivilegedID {
				t.Errorf("overlayd runs as user %d of the machine, want %d", uid, unprivilegedID)
			}
			log := h.daemon.text()
			if mode == modeUserspace && (!strings.Contains(log, "tun_vnet=true") || !strings.Contains(log, "udp_gro=true")) {
				t.Errorf("not the fast tier:\n%s", log)
			}
			if strings.Contains(log, "level=ERROR") {
				t.Errorf("errors in the log:\n%s", log)
			}
			a := h.pod(0, 0)
			for i, peer := range []string{modeKernel, modeUserspace} {
				b := c.hosts[i].pod(0, 0)
				t.Run("with "+peer, func(t *testing.T) {
					warmUp(t, a, b)
					checkPair(t, h, a, c.hosts[i], b, transferSize(t))
				})
			}
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d at SIGTERM", code)
			}
		})
	}
}

// requireUserNamespaces skips the test if the kernel refuses them even to root, as
// it does in a chroot (user_namespaces(7)); if OVERLAYD_REQUIRE_ROOT=1 says
// that nothing may be skipped, it fails instead.
func requireUserNamespaces(t *testing.T) {
	t.Helper()
	netnstest.RequireRoot(t)
	probe := exec.Command("/proc/self/exe", "-test.run=^$")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	err := probe.Run()
	switch {
	case !errors.Is(err, unix.EPERM):
	case os.Getenv("OVERLAYD_REQUIRE_ROOT") == "1":
		t.Fatalf("make a user namespace: %v (in a chroot?), and OVERLAYD_REQUIRE_ROOT=1 forbids to skip this", err)
	default:
		t.Skipf("make a user namespace: %v (in a chroot?)", err)
	}
}

// unprivilegedHost starts overlayd in new user, mount and network namespaces, and
// joins the last to the cluster's underlay before overlayd begins.
func (c *cluster) unprivilegedHost(static string, args ...string) *host {
	t := c.t
	t.Helper()
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	binary, tun := filepath.Join(dir, "overlayd"), filepath.Join(dir, "tun")
	h := &host{c: c, name: "unprivileged", addr: netip.MustParseAddr("192.0.2.100"), subnetFile: filepath.Join(run, "subnet.env")}
	for _, step := range []func() error{
		func() error { return os.Chmod(filepath.Dir(dir), 0o711) }, // of the test's temporary directories
		func() error { return os.Mkdir(run, 0o755) },
		func() error { return os.Chown(run, unprivilegedID, unprivilegedID) },
		func() error { return os.Link(static, binary) },
		// udev lets everybody open /dev/net/tun; a machine without udev may not.
		func() error { return unix.Mknod(tun, unix.S_IFCHR, int(unix.Mkdev(10, 200))) },
		func() error { return os.Chmod(tun, 0o666) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	script := `mount --bind "$1" /dev/net/tun && read go && shift && exec "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script, "sh", tun, binary, "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile}, args...)...)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: unprivilegedID, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.daemon = startCommand(t, c.under, h.name, cmd)
	h.NS = namespaceOf(t, cmd.Process.Pid)
	c.join(h)
	if _, err := io.WriteString(begin, "go\n"); err != nil {
		t.Fatal(err)
	}
	return h
}

// uid returns the user that the process runs as.
func (p *process) uid() (uid int) {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "Uid:")
	fmt.Sscan(rest, &uid)
	return uid
}

// namespaceOf returns the network namespace of a process. netnstest makes
// namespaces that belong to the machine's root, so one of these gives way.
func namespaceOf(t *testing.T, pid int) *netnstest.NS {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ns := netnstest.New(t)
	if err := unix.Dup3(int(f.Fd()), int(ns.Handle()), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return ns
}

// join gives h, which newCluster did not make, its link to the underlay.
func (c *cluster) join(h *host) {
	c.t.Helper()
	netnstest.Link(c.under, h.name, h.NS, "eth0")
	c.under.Must(func() error {
		l, err := netlink.LinkByName(h.name)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, br)
	})
	h.Must(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	h.Addr("eth0", netip.PrefixFrom(h.addr, 24).String())
	h.DefaultRoute("192.0.2.1")
}
