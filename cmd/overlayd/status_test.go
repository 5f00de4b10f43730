package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestStatus: what `overlayd status` says of real daemons, in each of its forms, from before the first one to after its end.
func TestStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	h, peer := c.hosts[0], c.hosts[1]
	socket := admin.Path(h.subnetFile)
	if err := os.Chmod(socketDir(t, h), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(want int, args ...string) string {
		t.Helper()
		code, out := overlayd(t, append([]string{"status", "--subnet-file", h.subnetFile}, args...)...)
		if code != want {
			t.Errorf("status %q: exit code %d, want %d:\n%s", args, code, want, out)
		}
		return out
	}
	says := func(out string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("%q is not in\n%s", part, out)
			}
		}
	}
	says(run(exitNoDaemon), "no overlayd answers: there is no "+socket, "fix: start overlayd")
	says(run(exitNoDaemon, "--wait", "1ms"), "no overlayd answers")
	h.start("--dataplane", modeUserspace)
	peer.start("--dataplane", modeKernel)
	name, _ := os.Hostname()
	says(run(0, "--wait", patience.String()), "healthy:")
	eventually(t, patience, "the peer is there", func() error {
		_, err := readPeer(t, h, peer)
		return err
	})
	says(run(0), "healthy: 1 peer", "lease      "+h.gateway().Masked().String()+" as "+h.addr.String(), "store      etcd "+c.url, "dataplane  userspace, VNI 1",
		"source check strict", "underlay   eth0", "parts      guard ok, rules ok", name, peer.gateway().Masked().String(), peer.addr.String(), "up")
	if out := run(0, "--brief"); out != "healthy: 1 peer\n" {
		t.Errorf("brief: %q", out)
	}
	for _, x := range []string{name, peer.gateway().Masked().String(), peer.gateway().Addr().String(), peer.addr.String()} {
		says(run(0, "--peer", x), peer.addr.String(), "up")
	}
	says(run(exitUsage, "--peer", "nobody"), `--peer "nobody": the daemon knows no such peer`)
	var d status.Daemon
	if err := json.Unmarshal([]byte(run(0, "-o", "json")), &d); err != nil || d.V != status.Version || d.Verdict.State != status.Healthy || len(d.Networks[0].Offloads) == 0 {
		t.Errorf("json: %+v, %v", d, err)
	}
	if out := run(0, "-o", "json"); strings.Contains(out, "null") || strings.Contains(out, "0001-01-01") {
		t.Errorf("empty values in\n%s", out)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%s: %v, %v", socket, info, err)
	}
	foreign := exec.Command("/proc/self/exe", "status", "--subnet-file", h.subnetFile)
	foreign.Env = append(os.Environ(), asOverlayd+"=1")
	foreign.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := foreign.CombinedOutput()
	if foreign.ProcessState.ExitCode() != exitFailure {
		t.Errorf("another user: %v", err)
	}
	says(string(out), "no right to use the admin socket "+socket, "--admin-group")
	level := admin.NewClient(socket)
	if err := level.SetLogLevel(t.Context(), "debug"); err != nil {
		t.Error(err)
	}
	h.daemon.waitLog("log level set", patience)
	h.daemon.stop(unix.SIGKILL)
	says(run(exitNoDaemon), "nobody listens at "+socket)
	h.up("--dataplane", modeUserspace)
	run(0, "--wait", patience.String())
	before := h.daemon
	h.up("--dataplane", modeUserspace, "--replace")
	before.wait(patience)
	run(0, "--wait", patience.String())
	h.daemon.stop(unix.SIGKILL)
	if p := h.overlayd("cleanup", "--subnet-file", h.subnetFile); p.wait(patience) != 0 {
		t.Errorf("cleanup: %s", p.text())
	}
	says(run(exitNoDaemon), "there is no "+socket)
}

// socketDir is the directory of a host's admin socket.
func socketDir(t *testing.T, h *host) string {
	t.Helper()
	return h.subnetFile[:strings.LastIndexByte(h.subnetFile, '/')]
}

// readPeer returns how h has peer, once it works.
func readPeer(t *testing.T, h, peer *host) (out string, err error) {
	t.Helper()
	code, out := overlayd(t, "status", "--subnet-file", h.subnetFile, "--peer", peer.addr.String())
	if code != 0 {
		return out, os.ErrNotExist
	}
	return out, nil
}

// TestStatusFlags: flags that cannot be meant are refused by name.
func TestStatusFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-o", "xml"}, `-o "xml": want text, wide or json`},
		{[]string{"--wait", "-1s"}, "--wait -1s: want a time"},
		{[]string{"--wait", "0s"}, "--wait 0s: want a time"},
		{[]string{"--wait", "soon"}, "soon"},
		{[]string{"--watch", "--wait", "1s"}, "--watch and --wait"},
		{[]string{"--peer", "x", "--brief"}, "--peer"},
		{[]string{"--subnet-file", ""}, "--subnet-file"},
		{[]string{"--subnet-dir", ""}, "--subnet-dir"},
		{[]string{"extra"}, "extra"},
		{[]string{"--breif"}, "do you mean --brief?"},
	} {
		code, out := overlayd(t, append([]string{"status"}, c.args...)...)
		if code != exitUsage || !strings.Contains(out, c.says) {
			t.Errorf("%q: exit code %d, want %q:\n%s", c.args, code, c.says, out)
		}
	}
	if code, out := overlayd(t, "statsu"); code != exitUsage || !strings.Contains(out, `do you mean "status"?`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// TestUnderlayFaults: an underlay interface that is down or has lost its address is named within two seconds by status, doctor
// and log, before what follows from it, and its end too.
func TestUnderlayFaults(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		c := newCluster(t, 1, testNetwork)
		h := c.hosts[0]
		h.up("--dataplane", mode)
		addr := h.addr.String()
		for _, f := range []struct{ breaks, mends, text string }{
			{"link set eth0 down", "link set eth0 up", "the underlay interface eth0 is down"},
			{"addr del " + addr + "/24 dev eth0", "addr add " + addr + "/24 dev eth0", "the underlay interface eth0 has lost its address " + addr},
		} {
			h.Run("ip", strings.Fields(f.breaks)...)
			eventually(t, netnstest.Patient(2*time.Second), mode+": "+f.breaks, func() error {
				told := h.overlayd("status", "--subnet-file", h.subnetFile)
				told.wait(patience)
				doctor := h.overlayd("doctor", "--subnet-file", h.subnetFile)
				doctor.wait(patience)
				if !strings.HasPrefix(told.text(), "degraded: "+f.text) || !strings.HasPrefix(doctor.text(), "fail     underlay          "+f.text) {
					return fmt.Errorf("status:\n%sdoctor:\n%s", told.text(), doctor.text())
				}
				return nil
			})
			h.Run("ip", strings.Fields(f.mends)...)
			eventually(t, patience, mode+": the end is told", func() error {
				if log := h.daemon.text(); linesWith(log, `level=WARN msg="`+f.text) != 1 || linesWith(log, "resolved: "+f.text) != 1 {
					return errors.New(log)
				}
				return nil
			})
		}
	}
}
