package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/rights"
)

// shipped starts overlayd as it is shipped, without cgo, on a host.
func (h *host) shipped(args ...string) *process {
	h.c.t.Helper()
	args = append([]string{"--etcd-endpoints", h.c.url, "--subnet-file", h.subnetFile}, args...)
	h.daemon = startCommand(h.c.t, h.NS, h.name, exec.Command(staticBinary(h.c.t), args...))
	return h.daemon
}

// has checks what each thread of a process may do, and that it never gets more than is in bounds.
func has(pid int, want, bounds rights.Set) error {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no threads: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch name {
			case "CapEff", "CapPrm":
				if value != fmt.Sprintf("%016x", uint64(want)) {
					return fmt.Errorf("%s: %s, want %016x", file, strings.TrimSpace(line), uint64(want))
				}
			case "CapBnd":
				if value != fmt.Sprintf("%016x", uint64(bounds)) {
					return fmt.Errorf("%s: %s, want %016x", file, strings.TrimSpace(line), uint64(bounds))
				}
			case "CapAmb", "CapInh":
				if strings.Trim(value, "0") != "" {
					return fmt.Errorf("%s: %s, want none", file, strings.TrimSpace(line))
				}
			case "NoNewPrivs":
				if value != "1" {
					return fmt.Errorf("%s: %s", file, strings.TrimSpace(line))
				}
			}
		}
	}
	return nil
}

// TestRights: a daemon that is set up, and its etcd, have no right that they do not need, in any thread; and the daemon still does
// all that it did: it repairs, follows a config to another device and port, keeps rules by iptables, and hands over.
func TestRights(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			c.hosts[1].up("--dataplane", modeKernel)
			h.shipped("--dataplane", mode, "--ip-masq").waitLog("msg=ready", patience)
			check := func(when string) {
				t.Helper()
				if err := has(h.daemon.cmd.Process.Pid, rights.NetAdmin|rights.NetRaw, rights.NetAdmin|rights.NetRaw); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			check("ready")
			h.daemon.waitLog(`given up" kept=net_admin,net_raw`, patience)
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			for _, fault := range []string{"ip link del flannel.1", "nft flush ruleset", "sysctl -qw net.ipv4.ip_forward=0", "rm " + h.subnetFile} {
				h.Must(func() error { return exec.Command("sh", "-c", fault).Run() })
				eventually(t, patience, fault+": repaired", func() error { return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond) })
			}
			for _, backend := range []string{`"vxlan","VNI":7`, `"vxlan","VNI":7,"Port":4789`, `"vxlan"`} {
				sessions := func(h *host) int { return linesWith(h.daemon.text(), "msg=ready") }
				before := []int{sessions(c.hosts[0]), sessions(c.hosts[1])}
				c.put(storePrefix+"config", strings.Replace(testNetwork, `"vxlan"`, backend, 1))
				for i, h := range c.hosts {
					eventually(t, patience, "another session", func() error {
						if n := sessions(h); n != before[i]+1 {
							return fmt.Errorf("%d sessions, %d before", n, before[i])
						}
						return nil
					})
				}
				warmUp(t, a, b)
			}
			check("later")
			before := h.daemon
			h.shipped("--dataplane", mode, "--ip-masq", "--replace").waitLog("msg=ready", patience)
			if code := before.wait(patience); code != 0 {
				t.Errorf("replaced: exit code %d", code)
			}
			warmUp(t, a, b)
			check("after a hand-over")
			if mode == modeUserspace {
				if code, out := overlayd(t, "drain", "--to=kernel", "--subnet-file", h.subnetFile); code != 0 {
					t.Errorf("drain: %d %s", code, out)
				}
				h.daemon.wait(patience)
				warmUp(t, a, b)
			} else if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
			for _, line := range append(warnings(before), warnings(h.daemon)...) {
				if strings.Contains(line, "ermi") || strings.Contains(line, "capabilit") { // permission, permitted
					t.Error(line)
				}
			}
		})
	}
}

// TestRightsThatAreNeeded: a right is kept only if something needs it when the daemon is set up.
func TestRightsThatAreNeeded(t *testing.T) {
	t.Parallel()
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(foreign, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args    []string
		want    rights.Set
		backend string
	}{
		"nothing but the overlay": {[]string{"--probe-interval=0", "--iptables-forward-rules=false"}, rights.NetAdmin, ""},
		"a group":                 {[]string{"--admin-group=65534"}, rights.NetAdmin | rights.NetRaw | rights.Chown, ""},
		"a directory of others":   {[]string{"--subnet-file", filepath.Join(foreign, "subnet.env")}, rights.NetAdmin | rights.NetRaw | rights.DACOverride, ""},
		"a port":                  {nil, rights.NetAdmin | rights.NetRaw | rights.NetBindService, `,"Port":53`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, 1, strings.Replace(testNetwork, `"vxlan"`, `"vxlan"`+c.backend, 1)).hosts[0]
			h.shipped(append([]string{"--dataplane", modeUserspace}, c.args...)...).waitLog("msg=ready", patience)
			if err := has(h.daemon.cmd.Process.Pid, c.want, c.want); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		c := newHosts(t, []string{under4}, 1)
		h := c.hosts[0]
		c.url = "http://192.0.2.2:2379"
		h.shipped("--dataplane", modeKernel, "--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url", c.url, "--etcd-data-dir", t.TempDir(), "--network", "10.5.0.0/16").waitLog("msg=ready", patience)
		children := h.daemon.children()
		if len(children) != 1 {
			t.Fatalf("children: %v, want etcd", children)
		}
		pid := children[0]
		if err := has(pid, 0, 0); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err != nil || !strings.Contains(string(b), "\nUmask:\t0077\n") {
			t.Errorf("etcd makes its socket with a mode that others may use for a moment: %v\n%s", err, b) // proc(5), Linux 4.7
		}
		unix.Kill(pid, unix.SIGKILL)
		eventually(t, patience, "another etcd", func() error {
			children := h.daemon.children()
			if len(children) != 1 || children[0] == pid {
				return fmt.Errorf("children: %v", children)
			}
			return has(children[0], 0, rights.NetAdmin|rights.NetRaw) // the daemon has no right any more to give up more for it
		})
	})
}

// TestFilesOfOthers: a file that is read again later, and by then cannot be, is refused at once by its name.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(key, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	kubeconfig, own := filepath.Join(t.TempDir(), "kubeconfig"), filepath.Join(t.TempDir(), "net-conf.json")
	if err := errors.Join(os.WriteFile(own, []byte(testNetwork), 0o600), os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"}}],"users":[{"name":"u","user":{"tokenFile":%q}}]}`, key), 0o600)); err != nil {
		t.Fatal(err)
	}
	config, env := filepath.Join(t.TempDir(), "net-conf.json"), filepath.Join(t.TempDir(), "overlayd.env")
	if err := errors.Join(os.WriteFile(config, []byte(testNetwork), 0o600), os.Chown(config, nobody, nobody), os.WriteFile(env, []byte("OVERLAYD_V=1\n"), 0o600), os.Chown(env, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		flag string
		file string
	}{
		"etcd":             {[]string{"--etcd-endpoints=https://192.0.2.1:2379", "--etcd-cafile", key}, "--etcd-cafile", key},
		"a password":       {[]string{"--etcd-endpoints=https://192.0.2.1:2379", "--etcd-username=u", "--etcd-password-file", key}, "--etcd-password-file", key},
		"by a kubeconfig":  {[]string{"--kube-subnet-mgr", "--kubeconfig-file", kubeconfig, "--net-config-path", own}, "--kube-subnet-mgr", key},
		"a network config": {[]string{"--kube-subnet-mgr", "--kube-api-url=https://192.0.2.1", "--net-config-path", key}, "--kube-subnet-mgr", key},
		"one for etcd":     {[]string{"--etcd-endpoints=https://192.0.2.1:2379", "--net-config-path", config}, "--net-config-path", config},
		"variables":        {[]string{"--etcd-endpoints=https://192.0.2.1:2379", "--env-file", env}, "--env-file", env},
		"some variables":   {[]string{"--etcd-endpoints=https://192.0.2.1:2379", "--env-file=-" + env}, "--env-file", env},
	} {
		code, out := overlayd(t, append(c.args, "--subnet-file", filepath.Join(t.TempDir(), "subnet.env"))...)
		if code != exitUsage || !strings.Contains(out, c.flag+": read "+c.file+" as user 0: permission denied") || !strings.Contains(out, "chown") {
			t.Errorf("%s: exit code %d: %s", name, code, out)
		}
	}
}
