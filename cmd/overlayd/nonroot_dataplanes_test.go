package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

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
	if err := os.Link(staticBinary(t), filepath.Join(u.dir, "program")); err != nil {
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
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, filepath.Join(u.dir, "program")}, args...)...)
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
				u.Must(func() error { return exec.Command("sh", "-c", fault+"; true").Run() }) // there may be none to flush
				eventually(t, patience, fault+": repaired", func() error {
					file, err := os.ReadFile(u.subnetFile)
					if err != nil || len(file) == 0 {
						return fmt.Errorf("subnet file: %v", err)
					}
					if got := u.rules(); !slices.Equal(sortedLines(got), sortedLines(rules)) { // sets are listed as they were made
						return fmt.Errorf("rules differ (-want +got):\n%s", cmp.Diff(strings.Split(rules, "\n"), strings.Split(got, "\n")))
					}
					return echoWithin(a.NS, b.addr, 56, 100*time.Millisecond)
				})
			}
			if err := holds(u.daemon.cmd.Process.Pid, rights.NetAdmin|rights.NetRaw); err != nil {
				t.Error(err)
			}
			for _, line := range warnings(u.daemon) {
				if strings.Contains(line, "permi") && !strings.Contains(line, "it is not known whether iptables-legacy drops packets") {
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

func sortedLines(text string) []string { return slices.Sorted(strings.SplitSeq(text, "\n")) }

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

// TestNonRootIptables: the user has rules by the iptables of nf_tables, and iptables-legacy, whose tables are for root, is refused by name.
func TestNonRootIptables(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	for i, kind := range []string{"nft", "legacy"} {
		path, err := os.MkdirTemp("", "bin")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(path) })
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"iptables", "ip6tables"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				program, err := exec.LookPath(name + "-" + kind + suffix)
				if err != nil {
					t.Fatal(err) // make test installs it
				}
				if err := os.Symlink(program, filepath.Join(path, name+suffix)); err != nil {
					t.Fatal(err)
				}
			}
		}
		u := newUser(t, c.hosts[i])
		u.daemon = u.run([]string{"PATH=" + path + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + filepath.Join(u.dir, "lock")},
			"--etcd-endpoints", c.url, "--subnet-file", u.subnetFile, "--dataplane", modeKernel, "--ip-masq")
		if kind == "legacy" {
			u.daemon.waitLog("iptables is iptables-legacy here, whose tables the kernel lists to root alone", patience)
			continue
		}
		u.daemon.waitLog("msg=ready", patience)
		if rules := u.rules(); !strings.Contains(rules, "10.5.0.0/16") || !strings.Contains(rules, "OVERLAYD-1") {
			t.Errorf("rules %s", rules)
		}
	}
}
