package leftovers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// flanneldHost is overlayHost after a flanneld may have taken over flannel.7, whose subnet is
// 10.5.1.0/24, and the subnet file.
func flanneldHost(t *testing.T) (ns *netnstest.NS, file string) {
	t.Helper()
	ns = overlayHost(t)
	ns.Run("ip", "addr", "add", "10.5.1.0/32", "dev", "flannel.7")
	ns.Run("ip", "link", "set", "flannel.7", "up")
	ns.Run("ip", "route", "add", "10.5.3.0/24", "via", "10.5.3.0", "dev", "flannel.7", "onlink", "proto", "211")
	ns.Run("ip", "neigh", "add", "10.5.3.0", "lladdr", "02:00:00:00:00:03", "dev", "flannel.7", "nud", "permanent")
	ns.Run("bridge", "fdb", "add", "02:00:00:00:00:03", "dev", "flannel.7", "dst", "192.0.2.3")
	file = filepath.Join(t.TempDir(), "subnet.env")
	n, err := nodefile.Claim(file)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	writeSubnetFile(t, file)
	hourAgo := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(file, hourAgo, hourAgo), n.Wrote(hourAgo)); err != nil {
		t.Fatal(err)
	}
	return ns, file
}

// writeSubnetFile writes what flanneld and overlayd write alike, as a new file.
func writeSubnetFile(t *testing.T, file string) {
	t.Helper()
	text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// flanneldRules are such as flanneld writes, for a network.
const flanneldRules = `table ip flannel-ipv4 {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr NETWORK accept
	}
}`

// TestCleanupAfterFlanneld: whatever shows that a flanneld uses the device, cleanup keeps it and the
// subnet file and says why, removes what is overlayd's alone, and takes its alias off.
func TestCleanupAfterFlanneld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		sign   func(t *testing.T, ns *netnstest.NS, file string)
		device string // why it stays; empty: it goes
		file   string // the same
	}{
		{"nothing", func(*testing.T, *netnstest.NS, string) {}, "", ""},
		{"a route", func(t *testing.T, ns *netnstest.NS, _ string) {
			ns.Run("ip", "route", "add", "10.5.2.0/24", "via", "10.5.2.0", "dev", "flannel.7", "onlink")
		}, "somebody else uses it (routes of protocol boot)", "its subnet is that of a kept device"},
		{"a route through a nexthop", func(t *testing.T, ns *netnstest.NS, _ string) {
			ns.Run("ip", "nexthop", "add", "id", "70", "via", "10.5.2.0", "dev", "flannel.7", "onlink", "proto", "static")
			ns.Run("ip", "route", "add", "10.5.2.0/24", "nhid", "70", "proto", "77")
		}, "somebody else uses it (routes of protocol 77)", "its subnet is that of a kept device"},
		{"rules", func(t *testing.T, ns *netnstest.NS, _ string) {
			ns.Run("nft", strings.Replace(flanneldRules, "NETWORK", "10.5.0.0/16", 1))
		}, "flanneld uses it (traffic rules for 10.5.0.0/16)", "its subnet is that of a kept device"},
		{"rules in legacy tables", func(t *testing.T, ns *netnstest.NS, _ string) {
			ns.Run("iptables-legacy", "-N", "FLANNEL-FWD")
			ns.Run("iptables-legacy", "-A", "FLANNEL-FWD", "-d", "10.5.0.0/16", "-j", "ACCEPT")
		}, "flanneld uses it (traffic rules for 10.5.0.0/16)", "its subnet is that of a kept device"},
		{"rules for another network", func(t *testing.T, ns *netnstest.NS, _ string) {
			ns.Run("nft", strings.Replace(flanneldRules, "NETWORK", "10.6.0.0/16", 1))
			ns.Run("iptables-legacy", "-N", "OTHERS")
			ns.Run("iptables-legacy", "-A", "OTHERS", "-d", "10.5.0.0/16", "-j", "ACCEPT")
		}, "", ""},
		{"its subnet file", func(t *testing.T, _ *netnstest.NS, file string) { writeSubnetFile(t, file) },
			"somebody else uses it (subnet file FILE)", "overlayd has not written it"},
		{"a process", func(t *testing.T, ns *netnstest.NS, file string) {
			processtest.Flanneld(t, ns.Start, "-ip-masq", "--subnet-file="+file)
		},
			"flanneld uses it (process ", "flanneld uses it (process "},
		{"a process with a relative path", func(t *testing.T, ns *netnstest.NS, file string) {
			in := func(cmd *exec.Cmd) error { cmd.Dir = filepath.Dir(file); return ns.Start(cmd) }
			processtest.Flanneld(t, in, "-subnet-file", filepath.Base(file))
		}, "flanneld uses it (process ", "flanneld uses it (process "},
		{"a process that has no subnet yet", func(t *testing.T, ns *netnstest.NS, file string) {
			processtest.Flanneld(t, ns.Start, "-subnet-file", file+".other", "-ip-masq")
		}, "flanneld uses it (process ", "its subnet is that of a kept device"},
		{"a process of another user", func(t *testing.T, ns *netnstest.NS, file string) {
			processtest.Flanneld(t, asStranger(ns.Start), "-subnet-file", file)
		}, "", ""},
		{"a process elsewhere", func(t *testing.T, _ *netnstest.NS, file string) {
			processtest.Flanneld(t, netnstest.New(t).Start, "-subnet-file", file)
		}, "", ""},
	} {
		for _, vnis := range [][]uint32{nil, {7}} {
			t.Run(fmt.Sprint(c.name, vnis), func(t *testing.T) {
				t.Parallel()
				ns, file := flanneldHost(t)
				c.sign(t, ns, file)
				var said []string
				clean := Cleanup{VNIs: vnis, SubnetFiles: []string{file}}
				ns.Must(func() error { return clean.Run(t.Context(), func(line string) { said = append(said, line) }) })
				text := strings.Join(said, "\n")
				if c.device == "" {
					if slices.Contains(links(ns), "flannel.7") || strings.Contains(text, "kept") || exists(file) {
						t.Errorf("links %q, said:\n%s", links(ns), text)
					}
					return
				}
				wants := []string{"kept device flannel.7: " + strings.ReplaceAll(c.device, "FILE", file), "kept " + file + ": " + c.file, "removed alias of flannel.7"}
				isFlanneld := c.name != "a route through a nexthop"
				if isFlanneld {
					wants = append(wants, "kept routes (1) on flannel.7: for flanneld")
				} else {
					wants = append(wants, "removed routes (1) on flannel.7", "removed neighbours (1) on flannel.7", "removed FDB entries (1) on flannel.7")
				}
				for _, want := range wants {
					if !strings.Contains(text, want) {
						t.Errorf("not said: %s", want)
					}
				}
				if got := ns.Run("ip", "-d", "link", "show", "flannel.7"); strings.Contains(got, "overlayd") || !exists(file) || exists(nodefile.Path(file)) {
					t.Errorf("files %v %v, device:\n%s", exists(file), exists(nodefile.Path(file)), got)
				}
				if left := ns.Run("ip", "route", "show", "proto", "211"); left != "" {
					t.Errorf("left: %s", left)
				}
				for command, want := range map[string]string{"ip route show proto boot": "10.5.3.0/24 via 10.5.3.0 dev flannel.7 onlink",
					"ip neigh show 10.5.3.0": "02:00:00:00:00:03", "bridge fdb show dev flannel.7": "192.0.2.3"} {
					words := strings.Fields(command)
					if got := ns.Run(words[0], words[1:]...); strings.Contains(got, want) != isFlanneld {
						t.Errorf("%s has %s: %t:\n%s", command, want, !isFlanneld, got)
					}
				}
				if t.Failed() {
					t.Logf("said:\n%s", text)
				}
				said = nil
				if ns.Must(func() error { return clean.Run(t.Context(), func(line string) { said = append(said, line) }) }); strings.Contains(strings.Join(said, "\n"), "removed") {
					t.Errorf("the second call said %q", said)
				}
			})
		}
	}
}

// asStranger starts a program, in a folder of root's, as another user.
func asStranger(start func(*exec.Cmd) error) func(*exec.Cmd) error {
	return func(c *exec.Cmd) error {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		dir := filepath.Dir(c.Path)
		return errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755), start(c))
	}
}

// TestCleanupBesideFlanneld: of what a flanneld that runs needs, cleanup keeps the direct routes, in flanneld's form, and if there is a TUN
// device in the place of flanneld's own, it goes, and cleanup says what to do. What is of another network goes as ever.
func TestCleanupBesideFlanneld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		vnis  []uint32
		start bool
		other string // of which the subnet file of flanneld is; empty: overlayd's
		keeps bool
	}{
		{"flanneld runs", nil, true, "", true},
		{"flanneld runs, one overlay", []uint32{7}, true, "", true},
		{"none runs", nil, false, "", false},
		{"flanneld of another network", nil, true, "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.1.1/24\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, file := flanneldHost(t)
			ns.Run("ip", "link", "del", "flannel.7")
			ns.Run("ip", "tuntap", "add", "flannel.7", "mode", "tun")
			ns.Run("ip", "link", "set", "flannel.7", "alias", "overlayd")
			ns.Run("ip", "addr", "add", "10.5.1.0/32", "dev", "flannel.7")
			ns.Run("ip", "route", "add", "10.5.4.0/24", "via", "192.0.2.2", "dev", "eth0", "proto", "211")
			says := ""
			if c.start {
				its := file
				if c.other != "" {
					its = filepath.Join(t.TempDir(), "subnet.env")
					if err := os.WriteFile(its, []byte(c.other), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				says = fmt.Sprintf("flanneld (process %d) has no device flannel.7 now: restart it", processtest.Flanneld(t, ns.Start, "-subnet-file", its))
			}
			var said []string
			ns.Must(func() error {
				return Cleanup{VNIs: c.vnis, SubnetFiles: []string{file}}.Run(t.Context(), func(line string) { said = append(said, line) })
			})
			if slices.Contains(links(ns), "flannel.7") {
				t.Error("flannel.7 is there")
			}
			for _, want := range []string{"kept direct route 10.5.4.0/24 via 192.0.2.2: for flanneld, in its form", says} {
				if slices.Contains(said, want) != c.keeps {
					t.Errorf("said %q: %t, in\n%s", want, !c.keeps, strings.Join(said, "\n"))
				}
			}
			if got := ns.Run("ip", "-d", "route", "show", "10.5.4.0/24"); strings.Contains(got, "proto boot") != c.keeps || strings.Contains(got, "211") {
				t.Errorf("route %q", got)
			}
		})
	}
}

// TestSubnetFileIsFIFO: a flanneld whose subnet file is not a file keeps nobody waiting.
func TestSubnetFileIsFIFO(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	if err := unix.Mkfifo(file, 0o666); err != nil {
		t.Fatal(err)
	}
	processtest.Flanneld(t, ns.Start, "-subnet-file", file)
	done := make(chan error, 1)
	go func() {
		done <- ns.Do(func() error { return CheckFlanneld(file+".other", prefixes("10.5.0.0/16"), false) })
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("waits for a writer")
		if f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// TestCleanupOfRules: cleanup of the rules only leaves everything else, and removes nothing that a daemon has.
func TestCleanupOfRules(t *testing.T) {
	t.Parallel()
	ns, file := flanneldHost(t)
	for _, table := range []string{"overlayd-7", "overlayd-8", "other"} {
		ns.Run("nft", "add", "table", "ip", table)
	}
	node, err := os.ReadFile(nodefile.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	before := ns.Run("ip", "-d", "link") + ns.Run("ip", "route")
	for _, step := range []struct {
		vnis  []uint32
		other string // subnet file besides
		want  []string
	}{
		{[]uint32{7}, "", []string{"removed table ip overlayd-7"}},
		{nil, file + ".other", []string{"removed table ip overlayd-8"}},
		{nil, "", nil},
	} {
		clean := Cleanup{VNIs: step.vnis, SubnetFiles: []string{file}, RulesOnly: true}
		if step.other != "" {
			clean.SubnetFiles = append(clean.SubnetFiles, step.other)
		}
		var said []string
		ns.Must(func() error { return clean.Run(t.Context(), func(line string) { said = append(said, line) }) })
		if !slices.Equal(said, step.want) {
			t.Errorf("VNIs %v: said %q, want %q", step.vnis, said, step.want)
		}
	}
	if got := ns.Run("nft", "list", "tables"); got != "table ip other" {
		t.Errorf("tables %q", got)
	}
	if now, err := os.ReadFile(nodefile.Path(file)); err != nil || string(now) != string(node) || !exists(file) || exists(nodefile.Path(file+".other")) {
		t.Errorf("node file %q, %v; was %q", now, err, node)
	}
	if after := ns.Run("ip", "-d", "link") + ns.Run("ip", "route"); after != before {
		t.Errorf("links and routes\n%s\nwant\n%s", after, before)
	}
	processtest.Run(t, asHolder, file)
	err = ns.Do(func() error {
		return Cleanup{SubnetFiles: []string{file}, RulesOnly: true}.Run(t.Context(), func(line string) { t.Errorf("beside a daemon: %s", line) })
	})
	if err == nil || !strings.Contains(err.Error(), "is running with subnet file") {
		t.Errorf("beside a daemon: %v", err)
	}
}

// TestSubnetFileOf: the subnet file of a flanneld is what its arguments or its environment say.
func TestSubnetFileOf(t *testing.T) {
	for _, c := range []struct {
		args, environ string
		want          string
	}{
		{"flanneld", "", "/run/flannel/subnet.env"},
		{"flanneld -subnet-file /a -ip-masq", "FLANNELD_SUBNET_FILE=/b", "/a"},
		{"flanneld --subnet-file=/a", "", "/a"},
		{"flanneld -ip-masq subnet-file=/c", "X=1 FLANNELD_SUBNET_FILE=/b", "/b"},
		{"flanneld -subnet-file", "FLANNELD_SUBNET_FILE=", ""},
	} {
		got, isGiven := subnetFileOf(strings.Fields(c.args), strings.Fields(c.environ))
		if got != c.want || isGiven != strings.Contains(c.args, "-subnet-file") {
			t.Errorf("%q %q: %q, by an argument: %t, want %q", c.args, c.environ, got, isGiven, c.want)
		}
	}
}
