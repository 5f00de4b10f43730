package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// follow does what docs/operate.md tells in the blocks of a test: the daemon is stopped and started as service, and all else that is
// not run by overlayd itself is done with files below root.
func follow(t *testing.T, commands []string, root string, service map[string]func()) {
	t.Helper()
	for _, command := range commands {
		if do := service[command]; do != nil {
			do()
			continue
		}
		words := strings.Fields(command)
		for i, w := range words {
			if strings.HasPrefix(w, "/") {
				words[i] = root + w
			}
		}
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
}

// TestBackUpAndRestore: with the commands of docs/operate.md reservations and the authority are there again, and no host has another subnet.
func TestBackUpAndRestore(t *testing.T) {
	t.Parallel()
	f, root := newFirst(t, 2, "--dataplane", modeKernel), t.TempDir()
	f.dir = filepath.Join(root, "var/lib/overlayd/etcd")
	for _, dir := range []string{"var/backups", "var/lib/overlayd", "etc/overlayd/pki"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.args = append(f.args, "--etcd-data-dir", f.dir)
	f.run().waitLog("msg=ready", patience)
	a, b := f.join()
	there, back := startMeters(t, a, b)
	reserve := func(subnet, ip string) {
		if p := f.overlayd("lease", "reserve", subnet, "--public-ip", ip, "--subnet-file", f.subnetFile); p.wait(patience) != 0 {
			t.Fatal(p.text())
		}
	}
	subnets := [2]string{f.gateway().String(), f.c.hosts[1].gateway().String()}
	commands := documented(t, "docs/operate.md", t.Name())
	if len(commands) != 8 {
		t.Fatalf("docs/operate.md has %q", commands)
	}
	service := map[string]func(){
		"systemctl stop overlayd": func() {
			if code := f.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
		},
		"systemctl start overlayd": func() { f.run().waitLog("msg=ready", patience) },
	}
	reserve("10.5.250.0/24", "192.0.2.250")
	follow(t, commands[:4], root, service)
	reserve("10.5.251.0/24", "192.0.2.251")
	follow(t, commands[4:], root, service)
	list := f.overlayd("lease", "list", "--subnet-file", f.subnetFile)
	if list.wait(patience); !strings.Contains(list.text(), "192.0.2.250") || strings.Contains(list.text(), "192.0.2.251") {
		t.Errorf("not the state of the copy:\n%s", list.text())
	}
	if now := [2]string{f.gateway().String(), f.c.hosts[1].gateway().String()}; now != subnets {
		t.Errorf("subnets %v, were %v", now, subnets)
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
}

// TestFirstHostIsLost: another host runs the etcd by the commands of docs/operate.md, with the authority alone. All keep their subnets, and
// their join files. Packets between the others are not lost.
func TestFirstHostIsLost(t *testing.T) {
	t.Parallel()
	s := newSecured(t, 3, "--dataplane", modeKernel)
	two, three := s.c.hosts[1], s.c.hosts[2]
	a, b := two.pod(0, 0), three.pod(0, 0)
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)
	subnets := [2]string{two.gateway().String(), three.gateway().String()}
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "var/backups/overlayd-pki"), os.DirFS(s.pki)); err != nil {
		t.Fatal(err)
	}
	s.daemon.stop(unix.SIGKILL)

	commands := documented(t, "docs/operate.md", t.Name())
	if len(commands) != 4 {
		t.Fatalf("docs/operate.md has %q", commands)
	}
	follow(t, commands[:2], root, nil)
	run := func(h *host, command string, env ...string) {
		h.daemon.stop(unix.SIGTERM)
		words := strings.Fields(strings.NewReplacer("192.0.2.12", two.addr.String(), "/etc/overlayd.pem", s.joins[2]).Replace(command))
		h.daemon = h.overlaydWith(append(env, "OVERLAYD_SUBNET_FILE="+h.subnetFile), append(words[1:], "--dataplane", modeKernel)...)
		h.daemon.waitLog("msg=ready", patience)
	}
	run(two, commands[2], "OVERLAYD_PKI_DIR="+root+"/etc/overlayd/pki", "OVERLAYD_ETCD_DATA_DIR="+filepath.Join(root, "etcd"))
	run(three, commands[3])
	if now := [2]string{two.gateway().String(), three.gateway().String()}; now != subnets {
		t.Errorf("subnets %v, were %v", now, subnets)
	}
	list := three.overlayd("lease", "list", "--subnet-file", three.subnetFile)
	if code := list.wait(patience); code != 0 || linesWith(list.text(), two.addr.String()) != 1 || linesWith(list.text(), three.addr.String()) != 1 {
		t.Errorf("exit code %d:\n%s", code, list.text())
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
}
