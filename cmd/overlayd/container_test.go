package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// container says how a container differs from what `docker run --cap-add NET_ADMIN
// --device /dev/net/tun` gives: Docker's default capabilities and seccomp rules,
// /proc/sys read-only.
type container struct {
	noNetAdmin bool
	noNetRaw   bool
	noTun      bool
	args       []string
}

// startIn starts overlayd in a container of Debian's runc on host h.
func (c container) startIn(t *testing.T, h *host, static string) *process {
	t.Helper()
	if _, err := exec.LookPath("runc"); err != nil {
		t.Fatal("this test needs runc: apt-get install runc (make test does)")
	}
	bundle := t.TempDir()
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(static, filepath.Join(rootfs, "overlayd")); err != nil {
		t.Fatal(err)
	}
	// The container writes its subnet file where the test reads that of the host.
	shared := filepath.Dir(h.subnetFile)
	args := append([]string{"/overlayd", "--etcd-endpoints", h.c.url, "--subnet-file", "/run/flannel/subnet.env"}, c.args...)
	spec, err := json.Marshal(c.spec(t, h, args, shared))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("overlayd-test-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(bundle))+filepath.Base(bundle))
	state := t.TempDir()
	p := startCommand(t, h.NS, h.name, exec.Command("runc", "--root", state, "run", "--bundle", bundle, id))
	t.Cleanup(func() { exec.Command("runc", "--root", state, "delete", "--force", id).Run() })
	h.daemon = p
	return p
}

func (c container) spec(t *testing.T, h *host, args []string, shared string) *specs.Spec {
	t.Helper()
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}
	if !c.noNetRaw {
		caps = append(caps, "CAP_NET_RAW")
	}
	if !c.noNetAdmin {
		caps = append(caps, "CAP_NET_ADMIN")
	}
	if !c.noTun { // with it overlayd makes the device node, and runc before 1.2 lets it
		caps = append(caps, "CAP_MKNOD")
	}
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/"}, NoNewPrivileges: false,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/run/flannel", Type: "bind", Source: shared, Options: []string{"bind", "rw"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"},
				{Type: "network", Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.Handle()))}},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	if !c.noTun {
		major, minor := int64(10), int64(200)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tun", Type: "c", Major: major, Minor: minor}}
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	}
	rules, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Linux.Seccomp = rules
	return s
}

// staticBinary returns the path of overlayd as it is shipped. The first test that asks builds it.
func staticBinary(t *testing.T) string {
	t.Helper()
	path, err := buildStatic()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildStatic = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.Getenv(scratch), "overlayd")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// TestContainer: in a container with Docker's defaults plus NET_ADMIN and the TUN
// device overlayd joins, in userspace mode and in auto mode, also without NET_RAW.
func TestContainer(t *testing.T) {
	t.Parallel()
	static := staticBinary(t)
	for name, in := range map[string]struct {
		mode string
		container
	}{
		"userspace":                  {modeUserspace, container{}},
		"userspace, without NET_RAW": {modeUserspace, container{noNetRaw: true}},
		"auto":                       {modeAuto, container{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			h.Must(func() error { return os.WriteFile("/proc/sys/"+ipForward, []byte("1"), 0) }) // docker run --sysctl
			c.hosts[1].up("--dataplane", modeKernel)
			in.args = []string{"--dataplane", in.mode}
			d := in.startIn(t, h, static)
			d.waitLog("msg=ready", patience)
			if in.mode == modeUserspace { // at full speed, in spite of seccomp and the missing capabilities
				for _, part := range []string{"tun_vnet=true", "tun_mask=0x6f", "udp_segment=128", "udp_gro=true", "coalesce=true"} {
					d.waitLog(part, time.Second)
				}
			}
			if whole, why := strings.Contains(d.text(), "tunnel=true"), strings.Contains(d.text(), "no tunnel offload"); in.mode == modeUserspace && whole == why || whole != (len(h.uplinks()) > 0) {
				t.Errorf("tunnel offload: used %t, the log says why not: %t, there are %v", whole, why, h.uplinks())
			}
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			checkPair(t, h, a, c.hosts[1], b, transferSize(t))
			if log := h.daemon.text(); strings.Contains(log, "level=ERROR") {
				t.Errorf("errors in the log:\n%s", log)
			}
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d at SIGTERM", code)
			}
		})
	}
}

// TestContainerLacks: what a container lacks is named with its remedy.
func TestContainerLacks(t *testing.T) {
	t.Parallel()
	static := staticBinary(t)
	for _, lack := range []struct {
		name string
		container
		says []string
	}{
		{"tun", container{noTun: true, args: []string{"--dataplane", modeUserspace}}, []string{"/dev/net/tun", "--device /dev/net/tun"}},
		{"NET_ADMIN", container{noNetAdmin: true, args: []string{"--dataplane", modeUserspace}}, []string{"--cap-add NET_ADMIN"}},
		{"NET_ADMIN in auto mode", container{noNetAdmin: true, args: []string{"--dataplane", modeAuto}}, []string{"--cap-add NET_ADMIN"}},
	} {
		t.Run(lack.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			p := lack.startIn(t, c.hosts[0], static)
			if code := p.wait(patience); code != exitFailure {
				t.Errorf("exit code %d, want %d", code, exitFailure)
			}
			for _, part := range lack.says {
				if !strings.Contains(p.text(), part) {
					t.Errorf("the log does not name %q:\n%s", part, p.text())
				}
			}
		})
	}
}

// TestForwardingOff: read-only /proc/sys with forwarding off is logged with its remedy.
func TestForwardingOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.Must(func() error { return os.WriteFile("/proc/sys/"+ipForward, []byte("0"), 0) })
	p := container{args: []string{"--dataplane", modeUserspace}}.startIn(t, h, staticBinary(t))
	p.waitLog("msg=ready", patience)
	p.waitLog("--sysctl net.ipv4.ip_forward=1", time.Second)
}
