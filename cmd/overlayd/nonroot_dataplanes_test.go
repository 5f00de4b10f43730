package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/rights"
)

// user is a user other than root, with CAP_NET_ADMIN and CAP_NET_RAW in its ambient set, a run directory of its own, and a
// /dev/net/tun that everybody may open.
type user struct {
	*host
	dir string
}

func newUser(t *testing.T, h *host) *user {
	t.Helper()
	u := &user{h, filepath.Join(os.TempDir(), strings.ReplaceAll(filepath.Base(filepath.Dir(t.TempDir())), "/", "-")+h.name)}
	if err := os.Mkdir(u.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(u.dir) })
	if err := os.Chown(u.dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(staticBinary(t), filepath.Join(u.dir, "overlayd")); err != nil {
		t.Fatal(err)
	}
	h.subnetFile = filepath.Join(u.dir, "subnet.env")
	return u
}

// run starts overlayd as the user.
func (u *user) run(env []string, args ...string) *process {
	t := u.c.t
	t.Helper()
	const script = `mount -t tmpfs none /dev/net && mknod /dev/net/tun c 10 200 && chmod 666 /dev/net/tun &&
		exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps +net_admin,+net_raw --ambient-caps +net_admin,+net_raw "$0" "$@"`
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, filepath.Join(u.dir, "overlayd")}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	return startCommand(t, u.NS, u.name, cmd)
}

// up starts the daemon and waits until it is ready.
func (u *user) up(env []string, args ...string) {
	u.c.t.Helper()
	u.daemon = u.run(env, append([]string{"--etcd-endpoints", u.c.url, "--subnet-file", u.subnetFile}, args...)...)
	u.daemon.waitLog("msg=ready", patience)
}

// TestNonRootDataplanes: a user with the two capabilities carries the overlay in both dataplanes, with rules in nftables: traffic
// of every kind, repairs, a drain, and a cleanup that leaves nothing.
func TestNonRootDataplanes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, strings.Replace(testNetwork, "{", `{"EnableNFTables":true,`, 1))
			c.hosts[1].up("--dataplane", modeKernel)
			u := newUser(t, c.hosts[0])
			before := u.rules()
			u.up(nil, "--dataplane", mode, "--ip-masq")
			a, b := u.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			checkPair(t, u.host, a, c.hosts[1], b, 1<<20)
			rules := u.rules()
			if rules == before {
				t.Error("no rules")
			}
			for _, fault := range []string{"ip link del flannel.1", "ip link set flannel.1 down", "ip addr flush dev flannel.1", "ip route flush dev flannel.1",
				"nft flush ruleset", "sysctl -qw net.ipv4.ip_forward=0", "rm " + u.subnetFile, "ip link set flannel.1 mtu 1300"} {
				u.Must(func() error { return exec.Command("sh", "-c", fault).Run() })
				eventually(t, patience, fault+": repaired", func() error {
					forward, err := os.ReadFile(u.subnetFile)
					if err != nil || len(forward) == 0 {
						return fmt.Errorf("subnet file: %v", err)
					}
					if got := u.rules(); got != rules {
						return fmt.Errorf("rules %s", got)
					}
					return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond)
				})
			}
			if err := holds(u.daemon.cmd.Process.Pid, rights.NetAdmin|rights.NetRaw); err != nil {
				t.Error(err)
			}
			for _, line := range warnings(u.daemon) {
				if strings.Contains(line, "permi") {
					t.Error(line)
				}
			}
			key := u.key()
			if p := u.run(nil, "drain", "--subnet-file", u.subnetFile, "--etcd-endpoints", c.url); p.wait(patience) != 0 || c.get(key) != "" {
				t.Errorf("drain: lease %q", c.get(key))
			}
			u.daemon.wait(patience)
			if p := u.run(nil, "cleanup", "--subnet-file", u.subnetFile); p.wait(patience) != 0 {
				t.Error("cleanup failed")
			}
			u.Must(func() error {
				if _, err := netlink.LinkByName("flannel.1"); err == nil {
					return fmt.Errorf("flannel.1 is left")
				}
				return nil
			})
			if got := u.rules(); got != before {
				t.Errorf("rules are left:\n%s\nbefore:\n%s", got, before)
			}
		})
	}
}

// holds reports whether a process has exactly these capabilities, and hands them to the programs that it runs.
func holds(pid int, want rights.Set) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, name := range []string{"CapEff", "CapPrm", "CapAmb"} {
		if part := fmt.Sprintf("%s:\t%016x\n", name, uint64(want)); err == nil && !strings.Contains(string(b), part) {
			err = fmt.Errorf("no %q in %s", part, b)
		}
	}
	return err
}

// TestNonRootIptables: with a lock of its own the user has rules by iptables; without, that lock is named.
func TestNonRootIptables(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	path := filepath.Join(t.TempDir(), "bin") // whichever iptables the machine prefers
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := path; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			legacy, err := exec.LookPath(name + "-legacy" + suffix)
			if err != nil {
				t.Skip(err)
			}
			if err := os.Symlink(legacy, filepath.Join(path, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	lock, err := os.OpenFile("/run/xtables.lock", os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	env := []string{"PATH=" + path + ":" + os.Getenv("PATH")}
	u := newUser(t, c.hosts[0])
	u.up(append(env, "XTABLES_LOCKFILE="+filepath.Join(u.dir, "xtables.lock")), "--dataplane", modeKernel, "--ip-masq")
	u.Must(func() error {
		out, err := exec.Command("iptables-legacy-save").Output()
		if err == nil && !strings.Contains(string(out), "10.5.0.0/16") {
			err = fmt.Errorf("no rules in %s", out)
		}
		return err
	})
	v := newUser(t, c.hosts[1])
	v.daemon = v.run(env, "--etcd-endpoints", c.url, "--subnet-file", v.subnetFile, "--dataplane", modeKernel, "--ip-masq")
	v.daemon.waitLog("/run/xtables.lock", patience)
	v.daemon.waitLog("XTABLES_LOCKFILE", patience)
	unix.Kill(v.daemon.cmd.Process.Pid, unix.SIGTERM)
}
