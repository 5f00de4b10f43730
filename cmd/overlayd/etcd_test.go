package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// first is the first host of a cluster whose etcd its daemon runs.
type first struct {
	*host
	dir  string // of etcd's data
	url  string
	args []string
}

// newFirst makes n hosts, of which the first is to run etcd.
func newFirst(t *testing.T, n int, args ...string) *first {
	c := newCluster(t, n, "")
	f := &first{host: c.hosts[0], dir: filepath.Join(t.TempDir(), "etcd"), url: "http://192.0.2.2:2379"}
	f.args = append([]string{"--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url", f.url, "--etcd-data-dir", f.dir,
		"--network", "10.5.0.0/16", "--subnet-file", f.subnetFile}, args...)
	return f
}

// run starts the daemon.
func (f *first) run(args ...string) *process {
	f.c.t.Helper()
	f.daemon = f.overlayd(append(f.args, args...)...)
	return f.daemon
}

// join starts the daemons of the other hosts, and puts a pod behind each of the first two.
func (f *first) join() (a, b *pod) {
	t := f.c.t
	t.Helper()
	for _, h := range f.c.hosts[1:] {
		h.up("--etcd-endpoints", f.url, "--dataplane", modeKernel)
	}
	a, b = f.pod(0, 0), f.c.hosts[1].pod(0, 0)
	warmUp(t, a, b)
	return a, b
}

// etcd returns the pid of the daemon's etcd, 0 if none runs.
func (f *first) etcd() (pid int) {
	f.c.t.Helper()
	for _, child := range f.daemon.children() {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		if err == nil && strings.Contains(string(cmdline), "\x00etcd\x00--dir="+f.dir+"\x00") {
			pid = child
		}
	}
	return pid
}

// livingEtcd is etcd if it must run: a signal to 0 would go to the processes of this test.
func (f *first) livingEtcd() int {
	f.c.t.Helper()
	pid := f.etcd()
	if pid == 0 {
		f.c.t.Fatal("the daemon has no etcd")
	}
	return pid
}

// client returns a client of the daemon's etcd.
func (f *first) client() *clientv3.Client {
	f.c.t.Helper()
	again := grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond}})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{f.url}, Logger: zap.NewNop(), DialOptions: append(dialIn(f.NS), again)})
	if err != nil {
		f.c.t.Fatal(err)
	}
	f.c.t.Cleanup(func() { client.Close() })
	return client
}

// answers waits until etcd takes a write.
func (f *first) answers(client *clientv3.Client, key, value string, within time.Duration) {
	f.c.t.Helper()
	eventually(f.c.t, within, "etcd takes a write", func() error {
		ctx, cancel := context.WithTimeout(f.c.t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := client.Put(ctx, key, value)
		return err
	})
}

// TestEtcdIsAProcess: the daemon's etcd is started again when it dies, ends with the daemon however that ends,
// and a signal to all processes leaves it alone until the daemon has given back what it has there.
func TestEtcdIsAProcess(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 2, "--dataplane", modeUserspace)
	f.run().waitLog("msg=ready", patience)
	a, b := f.join()
	there, back := startMeters(t, a, b)
	subnet := f.gateway()
	pid := f.livingEtcd()
	unix.Kill(pid, unix.SIGKILL)
	eventually(t, promised(2*time.Second), "another etcd", func() error {
		if now := f.etcd(); now == 0 || now == pid {
			return fmt.Errorf("pid %d", now)
		}
		return nil
	})
	f.answers(f.client(), "/coreos.com/network/x", "y", patience)
	f.daemon.waitLog("embedded etcd runs again", patience)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}

	pid = f.livingEtcd()
	f.daemon.stop(unix.SIGKILL)
	f.run().waitLog("msg=ready", patience) // at once: the etcd before may not have ended
	if f.gateway() != subnet {
		t.Errorf("subnet is %s, was %s", f.gateway(), subnet)
	}
	if lives(pid) {
		t.Errorf("etcd of the daemon that was killed runs")
	}

	etcd := f.livingEtcd()
	unix.Kill(etcd, unix.SIGTERM)
	if code := f.daemon.stop(unix.SIGTERM); code != 0 || linesWith(f.daemon.text(), "level=ERROR") > 0 || strings.Contains(f.daemon.text(), "does not run") {
		t.Errorf("exit code %d:\n%s", code, f.daemon.text())
	}
	if lives(etcd) {
		t.Errorf("etcd of the daemon that was stopped runs")
	}
}

// TestDataOfEtcdGone: if somebody removes the data while etcd runs, the log says so at once, and everything is there again: the network
// config from the daemon that has it, and all leases.
func TestDataOfEtcdGone(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 2, "--dataplane", modeKernel)
	f.run().waitLog("msg=ready", patience)
	a, b := f.join()
	there, back := startMeters(t, a, b)
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.daemon.waitLog("it was removed or replaced while etcd ran", promised(3*time.Second))
	f.daemon.waitLog("network config was gone from the store: written again", patience)
	client := f.client()
	for key, want := range map[string]int{"/coreos.com/network/config": 1, "/coreos.com/network/subnets/": 2} {
		eventually(t, patience, key+" is back", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r, err := client.Get(ctx, key, clientv3.WithPrefix())
			if err == nil && len(r.Kvs) != want {
				err = fmt.Errorf("%d keys", len(r.Kvs))
			}
			return err
		})
	}
	for _, h := range f.c.hosts {
		eventually(t, patience, h.name+" is well", func() error {
			if code, out := overlayd(t, "status", "--subnet-file", h.subnetFile); code != 0 || strings.Contains(out, "no usable network config") {
				return fmt.Errorf("%d: %s", code, out)
			}
			return nil
		})
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
}

// TestDamagedEtcd: a daemon whose etcd cannot use its data serves, says what to do, and does it if it is told to:
// nothing is deleted, and the nodes have their subnets again.
func TestDamagedEtcd(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 2, "--dataplane", modeKernel)
	f.run().waitLog("msg=ready", patience)
	a, b := f.join()
	subnets := [2]string{f.gateway().String(), f.c.hosts[1].gateway().String()}
	there, back := startMeters(t, a, b)
	if code := f.daemon.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	db := filepath.Join(f.dir, "member", "snap", "db")
	if err := os.WriteFile(db, []byte(strings.Repeat("junk", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run().waitLog("start the daemon with --etcd-embedded-rebuild", patience)
	waitTraffic(t, there, 500)
	if code := f.daemon.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d beside damaged data", code)
	}
	f.run("--etcd-embedded-rebuild").waitLog("msg=ready", patience)
	f.daemon.waitLog("the damaged ones are kept aside", patience)
	if kept, err := filepath.Glob(filepath.Join(f.dir, "damaged-*", "snap", "db")); len(kept) != 1 || err != nil {
		t.Errorf("kept %q", kept)
	}
	client := f.client()
	eventually(t, patience, "both leases", func() error {
		r, err := client.Get(t.Context(), "/coreos.com/network/subnets/", clientv3.WithPrefix())
		if err == nil && len(r.Kvs) != 2 {
			err = fmt.Errorf("%d", len(r.Kvs))
		}
		return err
	})
	if now := [2]string{f.gateway().String(), f.c.hosts[1].gateway().String()}; now != subnets {
		t.Errorf("subnets %v, were %v", now, subnets)
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
}

// etcdDamages are what can have become of etcd's data, as commands in the data directory, and whether they have to be
// moved aside.
var etcdDamages = map[string]struct {
	script string
	aside  bool
}{
	"database empty":  {": > member/snap/db", false}, // its log has everything
	"database cut":    {"truncate -s 6000 member/snap/db", true},
	"pages of zeroes": {"dd if=/dev/zero of=member/snap/db bs=4096 seek=2 count=100 conv=notrunc", true},
	"log gone":        {"rm member/wal/*.wal", true},
	"log junk":        {"for f in member/wal/*.wal; do head -c 65536 /dev/urandom > $f; done", true},
}

// TestDamagesOfEtcd: whatever has become of its data, etcd runs again by itself or with --etcd-embedded-rebuild.
func TestDamagesOfEtcd(t *testing.T) {
	t.Parallel()
	for name, d := range etcdDamages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFirst(t, 1, "--dataplane", modeUserspace, "--etcd-embedded-rebuild")
			f.run().waitLog("msg=ready", patience)
			subnet := f.gateway()
			if code := f.daemon.stop(unix.SIGTERM); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			cmd := exec.Command("sh", "-ec", d.script)
			cmd.Dir = f.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			began := time.Now()
			f.run().waitLog("msg=ready", patience)
			t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
			if f.gateway() != subnet {
				t.Errorf("subnet is %s, was %s", f.gateway(), subnet)
			}
			if kept, _ := filepath.Glob(filepath.Join(f.dir, "damaged-*")); (len(kept) == 1) != d.aside {
				t.Errorf("kept %q, want some: %v:\n%s", kept, d.aside, f.daemon.text())
			}
		})
	}
}

// TestEtcdAddressTaken: the daemon goes on, and says which flag to change.
func TestEtcdAddressTaken(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 1, "--dataplane", modeUserspace)
	var other net.Listener
	f.Must(func() (err error) { other, err = net.Listen("tcp", "192.0.2.2:2379"); return err })
	f.run().waitLog("another address by --etcd-listen-client-url", patience)
	other.Close()
	f.daemon.waitLog("msg=ready", patience)
	if code := f.daemon.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d:\n%s", code, f.daemon.text())
	}
}

// TestEtcdNeedsItsDaemon: the subcommand is no command for people.
func TestEtcdNeedsItsDaemon(t *testing.T) {
	if code, out := overlayd(t, "etcd", "--dir", t.TempDir()); code != exitUsage || !strings.Contains(out, "only the daemon starts this") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if _, out := overlayd(t, "--help"); strings.Contains(out, "\n  etcd ") {
		t.Errorf("shown:\n%s", out)
	}
}

// mountNS starts a daemon in a mount namespace of its own, in which before was run.
func (h *host) mountNS(before string, args ...string) *process {
	h.c.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		h.c.t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-ec", before + `; exec "$0" "$@"`, exe}, args...)...)
	cmd.Env = append(h.c.env(), asOverlayd+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	h.daemon = startCommand(h.c.t, h.NS, h.name, cmd)
	return h.daemon
}

// TestReplaceWithEtcd: a daemon takes the place of one that runs etcd. That etcd ends with its daemon, and the new daemon
// has one of its own, with the same data.
func TestReplaceWithEtcd(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 2, "--dataplane", modeUserspace)
	f.run().waitLog("msg=ready", patience)
	a, b := f.join()
	subnet := f.gateway()
	there, back := startUnboundedMeters(t, a, b)
	for range replacements(t) {
		waitTraffic(t, there, 100)
		before, etcd := f.daemon, f.etcd()
		f.run("--replace").waitLog("msg=ready", patience)
		if code := before.wait(patience); code != 0 {
			t.Errorf("exit code %d of the daemon that was replaced", code)
		}
		if now := f.etcd(); now == 0 || lives(etcd) {
			t.Errorf("etcd has pid %d, had %d", now, etcd)
		}
		waitTraffic(t, back, 100)
	}
	if f.gateway() != subnet {
		t.Errorf("subnet is %s, was %s", f.gateway(), subnet)
	}
	// What comes before the new daemon forwards waits in queues, which have room for as long as etcd usually takes.
	t.Logf("%d datagrams lost", there.finish()+back.finish())
}
