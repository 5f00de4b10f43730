package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// jsonLine is a line of the log in JSON.
type jsonLine struct {
	Level, Msg, Err, Fix, Subnet, VTEP, MAC string

	LogLevel      string   `json:"log_level"`
	Certificates  string   `json:"certificates"`
	AfterARestart []string `json:"after_a_restart"`
}

// jsonLines returns the lines of a log with this message. It fails if a line is not JSON, or has what is text as a list of numbers.
func jsonLines(t *testing.T, text, msg string) (found []jsonLine) {
	t.Helper()
	numbers := regexp.MustCompile(`\[\d+(,\d+)+\]`)
	for line := range strings.Lines(text) {
		var l jsonLine
		if err := json.Unmarshal([]byte(line), &l); err != nil || numbers.MatchString(line) || l.Msg == "" {
			t.Errorf("%v: %s", err, line)
		}
		if l.Msg == msg {
			found = append(found, l)
		}
	}
	return found
}

// TestSignalsInTheLog: SIGHUP takes over a new log level and ends nothing, whatever its file says; SIGUSR1 says that it
// drains; peers that come and go have a line each; and all of it is JSON.
func TestSignalsInTheLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	h, peer := c.hosts[0], c.hosts[1]
	file := filepath.Join(t.TempDir(), "overlayd.env")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("OVERLAYD_DATAPLANE=kernel\nOVERLAYD_LOG_FORMAT=json\n")
	h.start("--env-file", file).waitLog(`"msg":"ready"`, patience)
	subnet := h.gateway().Masked().String()
	peer.up("--dataplane", modeKernel)
	peers := peer.gateway().Masked().String()
	h.daemon.waitLog(`"msg":"peer added"`, patience)

	write("OVERLAYD_DATAPLANE=kernel\nOVERLAYD_LOG_FORMAT=json\nOVERLAYD_V=1\nOVERLAYD_IFACE=eth9\n")
	h.daemon.cmd.Process.Signal(unix.SIGHUP)
	h.daemon.waitLog(`"log_level":"DEBUG"`, patience)
	write("OVERLAYD_LEASE_TTL=1ms\n")
	h.daemon.cmd.Process.Signal(unix.SIGHUP)
	h.daemon.waitLog("nothing is applied", patience)
	c.delete(h.key()) // it is renewed, which is a line of debugging
	h.daemon.waitLog(`"level":"DEBUG","msg":"lease renewed"`, patience)
	if code := peer.daemon.stop(unix.SIGUSR1); code != 0 || linesWith(peer.daemon.text(), "SIGUSR1, as overlayd drain sends it") != 1 {
		t.Errorf("the peer ended with %d:\n%s", code, peer.daemon.text())
	}
	h.daemon.waitLog(`"msg":"peer removed"`, patience)
	if code := h.daemon.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}

	text := h.daemon.text()
	if l := jsonLines(t, text, "SIGHUP: read again"); len(l) != 1 || l[0].Certificates != "none" || strings.Join(l[0].AfterARestart, " ") != "iface" {
		t.Errorf("read again: %+v", l)
	}
	if l := jsonLines(t, text, "SIGHUP: nothing is applied"); len(l) != 1 || l[0].Level != "ERROR" || !strings.Contains(l[0].Err, "--lease-ttl") {
		t.Errorf("not taken over: %+v", l)
	}
	if l := jsonLines(t, text, "lease acquired"); len(l) != 1 || l[0].Subnet != subnet {
		t.Errorf("acquired: %+v, want %s once", l, subnet)
	}
	for _, msg := range []string{"peer added", "peer removed"} {
		if l := jsonLines(t, text, msg); len(l) != 1 || l[0].Subnet != peers || l[0].VTEP != "192.0.2.3" || len(l[0].MAC) != 17 {
			t.Errorf("%s: %+v, want %s once", msg, l, peers)
		}
	}
	if l := jsonLines(t, text, "made device"); len(l) != 1 || len(l[0].MAC) != 17 {
		t.Errorf("made device: %+v", l)
	}
}

// TestNobodyReadsTheLog: the daemon and its etcd go on when whoever read their log has gone, count what is lost, and end in order.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 1)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/bash", append([]string{"-c", `exec "$0" "$@" 2> >(head -n 1)`, exe}, f.args...)...)
	cmd.Env = append(f.c.env(), asOverlayd+"=1")
	f.daemon = startCommand(t, f.NS, f.name, cmd)
	eventually(t, patience, "the daemon is ready and has lost lines", func() error {
		select {
		case <-f.daemon.done:
			t.Fatalf("the daemon has ended: %v", f.daemon.err)
		default:
		}
		var d status.Daemon
		_, out := overlayd(t, "status", "-o", "json", "--subnet-file", f.subnetFile)
		if err := json.Unmarshal([]byte(out), &d); err != nil || !d.Ready || d.Process.LogLinesLost == 0 {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	f.livingEtcd()
	if code := f.daemon.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestLogBlocks: a daemon whose log is a full pipe that nobody reads becomes ready, repairs, says so in its status, and ends in order.
func TestLogBlocks(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 1)
	exe, err := os.Executable()
	var pipe [2]int
	if err = errors.Join(err, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK)); err != nil {
		t.Fatal(err)
	}
	full := os.NewFile(uintptr(pipe[1]), "pipe")
	t.Cleanup(func() { full.Close(); unix.Close(pipe[0]) })
	for err == nil {
		_, err = unix.Write(pipe[1], make([]byte, 4096))
	}
	if err := unix.SetNonblock(pipe[1], false); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", `exec "$0" "$@" 2>&3 3>&-`, exe}, f.args...)...)
	cmd.Env = append(f.c.env(), asOverlayd+"=1")
	cmd.ExtraFiles = []*os.File{full}
	f.daemon = startCommand(t, f.NS, f.name, cmd)
	isReady := func() error {
		var d status.Daemon
		_, out := overlayd(t, "status", "-o", "json", "--subnet-file", f.subnetFile)
		if err := json.Unmarshal([]byte(out), &d); err != nil || !d.Ready || d.Process.LogBlocked.IsZero() || !strings.Contains(out, `"log_blocked"`) {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	}
	eventually(t, patience, "the daemon is ready", isReady)
	f.Run("ip", "link", "del", "flannel.1")
	eventually(t, patience, "the device is made again", func() error {
		return f.Do(func() error { _, err := net.InterfaceByName("flannel.1"); return err })
	})
	eventually(t, patience, "the daemon is still ready", isReady)
	began := time.Now()
	if code := f.daemon.stop(unix.SIGTERM); code != 0 || time.Since(began) > promised(3*time.Second) {
		t.Errorf("exit code %d after %s", code, time.Since(began))
	}
}

// TestJournalPriorities: what goes to the journal has its priority in front of each line, also the error that ends the
// program. Elsewhere JOURNAL_STREAM has no effect.
func TestJournalPriorities(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(stream, args string) string {
		cmd := exec.Command("/bin/sh", "-c", `export JOURNAL_STREAM=`+stream+`; exec "$0" `+args, exe)
		cmd.Env = append(os.Environ(), asOverlayd+"=1")
		out, _ := cmd.CombinedOutput() // it ends with an error
		return string(out)
	}
	const here = "$(stat -L -c %d:%i /proc/self/fd/2)"
	args := "--iface=none --etcd-password=x --subnet-file=" + t.TempDir() + "/subnet.env"
	for line := range strings.Lines(run(here, args)) {
		if !regexp.MustCompile(`^<[346]>(time=|overlayd: |fix: )`).MatchString(line) {
			t.Errorf("no priority: %s", line)
		}
	}
	for _, want := range []string{"<4>time=", "<3>overlayd: ", "<3>fix: "} {
		if out := run(here, args); !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if out := run(here, args+" --log-format=json"); !strings.Contains(out, `<3>{"time":`) || strings.Contains(out, "\n{") {
		t.Errorf("JSON: %s", out)
	}
	if out := run("1:1", args); strings.Contains(out, "<") {
		t.Errorf("elsewhere: %s", out)
	}
}
