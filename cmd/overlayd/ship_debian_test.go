//go:build ship

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/rights"
)

// debian is a Debian with its own systemd, booted on a host.
type debian struct {
	*host
	root string
	init int // its systemd
}

// bootDebian boots one on h. `make test-ship` makes what it is unpacked from.
func bootDebian(t *testing.T, h *host) *debian {
	t.Helper()
	d := &debian{host: h, root: t.TempDir()}
	command(t, "tar", "-C", d.root, "-xf", os.Getenv("OVERLAYD_DEBIAN_ROOT"))
	if err := os.WriteFile(filepath.Join(d.root, "etc/hostname"), []byte(h.name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("overlayd-ship-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	p := startCommand(t, h.NS, "Debian on "+h.name, exec.Command("testdata/boot-debian", d.root, group))
	t.Cleanup(func() {
		eventually(t, patience, "all processes of the Debian end", func() error { return removeGroup(group) })
	})
	t.Cleanup(func() { p.stop(unix.SIGKILL) })
	eventually(t, patience, "systemd runs", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.cmd.Process.Pid))
		if err == nil {
			_, err = fmt.Sscan(string(children), &d.init)
		}
		if err != nil {
			return err
		}
		_, err = os.Stat(d.path("run/systemd/private")) // it listens
		return err
	})
	d.must("systemctl", "is-system-running", "--wait")
	return d
}

// path returns where the host of the test sees a file of d.
func (d *debian) path(file string) string { return fmt.Sprintf("/proc/%d/root/%s", d.init, file) }

// removeGroup removes a control group and all below it, in which no process may be any more.
func removeGroup(name string) (err error) {
	for _, top := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var dirs []string
		filepath.WalkDir(filepath.Join(top, name), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			err = errors.Join(err, os.Remove(dir))
		}
	}
	return err
}

// do runs a command in d, as root, and returns what it prints.
func (d *debian) do(name string, args ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(d.init), "--all", "--wd=/", name}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// must is do, and the test fails if the command does.
func (d *debian) must(name string, args ...string) string {
	d.c.t.Helper()
	out, err := d.do(name, args...)
	if err != nil {
		d.c.t.Fatalf("%v\n%s", err, d.journal())
	}
	return out
}

// journal is the log of its daemons.
func (d *debian) journal() string {
	out, _ := d.do("journalctl", "--no-pager", "-o", "cat", "-u", "overlayd", "-u", "overlayd@blue")
	return out
}

// install copies a package to d and installs it.
func (d *debian) install(file string) {
	d.c.t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(d.path("root/overlayd.deb"), b, 0o644)
	}
	if err != nil {
		d.c.t.Fatal(err)
	}
	if out := d.must("dpkg", "--install", "/root/overlayd.deb"); strings.Contains(out, "arning") || strings.Contains(out, "ailed") {
		d.c.t.Error(out)
	}
}

// mainPID returns the daemon's, as this host numbers processes.
func (d *debian) mainPID() (pid int) {
	d.c.t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/root")
	mine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", d.init))
	if err != nil {
		d.c.t.Fatal(err)
	}
	inside := strings.TrimSpace(d.must("systemctl", "show", "--property=MainPID", "--value", "overlayd"))
	for _, root := range all {
		dir := filepath.Dir(root)
		if ns, _ := os.Readlink(filepath.Join(dir, "ns/pid")); ns != mine {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		_, ids, _ := strings.Cut(string(status), "\nNSpid:\t")
		ids, _, _ = strings.Cut(ids, "\n")
		if fields := strings.Fields(ids); len(fields) > 1 && fields[len(fields)-1] == inside {
			pid, _ = strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	d.c.t.Fatalf("no process is number %s there\n%s", inside, d.journal())
	return 0
}

// files are all that there are, but for those of dpkg itself and what changes anyway.
func (d *debian) files() (all []string) {
	return strings.Fields(d.must("find", "/", "-xdev", "(", "-path", "/var/lib/dpkg", "-o", "-path", "/var/log", "-o", "-path", "/var/cache", "-o", "-path", "/var/lib/systemd",
		"-o", "-name", "systemd-private-*", ")", "-prune", // of a service that runs: Debian's own may start at any time
		"-o", "-print"))
}

// newerDeb makes a later version of the package for this machine, and returns its path.
func newerDeb(t *testing.T) string {
	t.Helper()
	dir := filepath.Dir(filepath.Dir(release(t)))
	if err := makeIn(dir, "packages", "VERSION=v0.0.2", "ARCHES=amd64"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "dist/v0.0.2/overlayd_0.0.2-1_amd64.deb")
}

// TestShipDebian: on a Debian with its systemd the package is installed, starts nothing by itself, carries the overlay with the unit's rights
// in both dataplanes, loses no packet when it is restarted or upgraded, keeps its config then, and leaves nothing when it is purged.
func TestShipDebian(t *testing.T) {
	old, newer := deb(t, "amd64"), newerDeb(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, strings.Replace(testNetwork, "{", `{"EnableNFTables":true,`, 1))
			c.hosts[1].up("--dataplane", modeKernel)
			d := bootDebian(t, c.hosts[0])
			files, links := d.files(), d.Run("ip", "-o", "link", "show")
			d.install(old)
			if state, err := d.do("systemctl", "is-active", "overlayd"); err == nil {
				t.Errorf("overlayd is %s after it was installed", state)
			}
			d.refusesConfig()
			config := fmt.Sprintf("OVERLAYD_ETCD_ENDPOINTS=%s\nOVERLAYD_DATAPLANE=%s\nOVERLAYD_IP_MASQ=true\n", c.url, mode)
			if err := os.WriteFile(d.path("etc/overlayd.env"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			d.must("systemctl", "enable", "--now", "overlayd")
			d.subnetFile = d.path("run/flannel/subnet.env")
			a, b := d.pod(0, 0), c.hosts[1].pod(0, 0)
			warmUp(t, a, b)
			checkPair(t, d.host, a, c.hosts[1], b, 1<<20)
			if err := has(d.mainPID(), rights.NetAdmin|rights.NetRaw, rights.NetAdmin|rights.NetRaw); err != nil {
				t.Error(err)
			}
			d.isWell("v0.0.1")
			d.restartsCrashed()

			there, back := startUnboundedMeters(t, a, b)
			waitTraffic(t, there, 100)
			d.must("systemctl", "reload", "overlayd")
			d.must("systemctl", "restart", "overlayd")
			waitTraffic(t, back, 100)
			d.install(newer)
			d.isWell("v0.0.2")
			waitTraffic(t, there, 100)
			waitTraffic(t, back, 100)
			gap := max(there.gap.Load(), back.gap.Load())
			if lost := there.finish() + back.finish(); lost > 0 && time.Duration(gap) < 400*time.Millisecond { // see TestSupervised
				t.Errorf("%d datagrams lost, the longest gap was %s", lost, time.Duration(gap))
			}
			if now, err := os.ReadFile(d.path("etc/overlayd.env")); err != nil || string(now) != config {
				t.Errorf("%v: the config is %q", err, now)
			}
			d.startBlue()
			for _, line := range unexpected(d.journal()) {
				t.Error(line)
			}

			d.must("dpkg", "--purge", "overlayd")
			os.Remove(d.path("root/overlayd.deb"))
			if now := d.files(); !slices.Equal(now, files) {
				t.Errorf("files that are left or gone: %v", onlyOne(files, now))
			}
			if now, err := d.do("find", "/run/flannel"); err == nil {
				t.Errorf("left: %s", now)
			}
			if now := d.Run("nft", "list", "ruleset"); now != "" {
				t.Errorf("rules that are left:\n%s", now)
			}
			if now := d.Run("sh", "-c", "ip -o link show | grep -v pod0"); now != links {
				t.Errorf("links:\n%s\nbefore:\n%s", now, links)
			}
			if now := d.Run("ip", "route", "show", "proto", "211"); now != "" {
				t.Errorf("routes that are left:\n%s", now)
			}
			if out, _ := d.do("systemctl", "list-units", "--all", "--no-legend", "overlayd*"); out != "" {
				t.Errorf("units that are left: %s", out)
			}
		})
	}
}

// isWell waits until a version of the daemon runs that has nothing to report.
func (d *debian) isWell(version string) {
	d.c.t.Helper()
	eventually(d.c.t, patience, version+" is healthy", func() error {
		out, err := d.do("overlayd", "status")
		if err == nil && !strings.HasPrefix(out, "healthy") {
			err = errors.New(out)
		}
		if err == nil {
			if out, err = d.do("overlayd", "status", "-o", "json"); err == nil && !strings.Contains(out, `"`+version+`"`) {
				err = errors.New("another version")
			}
		}
		return err
	})
}

// refusesConfig: a daemon with a wrong variable ends with 2, and systemd does not start it again.
func (d *debian) refusesConfig() {
	d.c.t.Helper()
	if err := os.WriteFile(d.path("etc/overlayd.env"), []byte("OVERLAYD_DATAPLANE=dpdk\n"), 0o600); err != nil {
		d.c.t.Fatal(err)
	}
	if _, err := d.do("systemctl", "start", "overlayd"); err == nil {
		d.c.t.Error("a wrong variable is no error")
	}
	got := strings.Fields(d.must("systemctl", "show", "--property=ActiveState,NRestarts,ExecMainStatus", "overlayd"))
	slices.Sort(got)
	if want := []string{"ActiveState=failed", "ExecMainStatus=2", "NRestarts=0"}; !slices.Equal(got, want) {
		d.c.t.Errorf("%v, want %v", got, want)
	}
}

// restartsCrashed: systemd starts a daemon again that has crashed, and one that it has ended because nothing is heard from it.
func (d *debian) restartsCrashed() {
	d.c.t.Helper()
	show := func(property string) string {
		return strings.TrimSpace(d.must("systemctl", "show", "--property="+property, "--value", "overlayd"))
	}
	const dropIn = "/run/systemd/system/overlayd.service.d"
	d.must("mkdir", "-p", dropIn)
	if err := os.WriteFile(d.path(dropIn+"/quick.conf"), []byte("[Service]\nWatchdogSec=3s\n"), 0o644); err != nil {
		d.c.t.Fatal(err)
	}
	d.must("systemctl", "daemon-reload")
	d.must("systemctl", "restart", "overlayd")
	for _, sig := range []string{"ABRT", "SEGV", "STOP"} { // with the last the watchdog hears nothing
		before := show("NRestarts")
		d.must("systemctl", "kill", "--kill-who=main", "--signal="+sig, "overlayd")
		eventually(d.c.t, patience, "systemd starts the daemon again after SIG"+sig, func() error {
			if now, state := show("NRestarts"), show("ActiveState"); now == before || state != "active" {
				return fmt.Errorf("%s restarts, %s", now, state)
			}
			return nil
		})
	}
	d.must("rm", "-r", dropIn)
	d.must("systemctl", "daemon-reload")
	d.must("systemctl", "restart", "overlayd")
	d.isWell("v0.0.1")
}

// startBlue starts overlayd@blue, for a network of its own: systemctl waits until it is ready.
func (d *debian) startBlue() {
	d.c.t.Helper()
	d.c.put("/blue/config", `{"EnableNFTables":true,"Network":"10.9.0.0/16","Backend":{"Type":"vxlan","VNI":9,"Port":8473}}`)
	config := fmt.Sprintf("OVERLAYD_ETCD_ENDPOINTS=%s\nOVERLAYD_ETCD_PREFIX=/blue\n", d.c.url)
	if err := os.WriteFile(d.path("etc/overlayd/blue.env"), []byte(config), 0o600); err != nil {
		d.c.t.Fatal(err)
	}
	d.must("systemctl", "enable", "--now", "overlayd@blue")
	if env, err := readEnv(d.path("run/flannel/networks/blue.env")); err != nil || env["FLANNEL_NETWORK"] != "10.9.0.0/16" {
		d.c.t.Errorf("%v: %v", err, env)
	}
}

// onlyOne returns the lines that only one of two lists has.
func onlyOne(a, b []string) (all []string) {
	for _, line := range append(slices.Clone(a), b...) {
		if slices.Contains(a, line) != slices.Contains(b, line) {
			all = append(all, line)
		}
	}
	return all
}
