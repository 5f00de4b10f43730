package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/tap"
)

// captureProgram builds the program that decodes captures, once, and returns a PATH with it.
var captureProgram = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.Getenv(scratch), "bin")
	out, err := exec.Command("go", "build", "-o", filepath.Join(dir, tap.Program), "../"+tap.Program).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	err = errors.Join(err, os.Chmod(os.Getenv(scratch), 0o711)) // other users execute it, too
	return dir + ":" + os.Getenv("PATH"), err
})

// capturer runs overlayd capture and overlayd trace on a host.
type capturer struct {
	*host
	path string
}

func newCapturer(t *testing.T, h *host) capturer {
	t.Helper()
	path, err := captureProgram()
	if err != nil {
		t.Fatal(err)
	}
	return capturer{h, path}
}

// begin starts a command that captures, and waits until the daemon has begun.
func (c capturer) begin(args ...string) *process {
	c.c.t.Helper()
	before := strings.Count(c.daemon.text(), "a capture begins")
	p := c.overlaydWith([]string{"PATH=" + c.path}, append(args, "--subnet-file", c.subnetFile)...)
	eventually(c.c.t, patience, "a capture begins", func() error {
		if strings.Count(c.daemon.text(), "a capture begins") > before {
			return nil
		}
		return errors.New(p.text())
	})
	return p
}

// refused runs a command that cannot capture, and wants a sentence.
func (c capturer) refused(code int, says string, args ...string) {
	c.c.t.Helper()
	p := c.overlaydWith([]string{"PATH=" + c.path}, append(args, "--subnet-file", c.subnetFile)...)
	if got := p.wait(patience); got != code || !strings.Contains(p.text(), says) || strings.Count(p.text(), "\n") > 2 {
		c.c.t.Errorf("%q: exit code %d, want %d and %q:\n%s", args, got, code, says, p.text())
	}
}

// inDaemon returns how many files a daemon has open and how many captures have begun and ended.
func (c capturer) inDaemon() (files, begun, ended int) {
	c.c.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.daemon.cmd.Process.Pid))
	if err != nil {
		c.c.t.Fatal(err)
	}
	log := c.daemon.text()
	return len(all), strings.Count(log, "a capture begins"), strings.Count(log, "a capture ends")
}

// TestCapture: what goes through a real daemon is captured and traced, and nothing of a capture is left behind.
func TestCapture(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, 2, testNetwork)
	a, b := cl.upPair([2]string{modeUserspace, modeUserspace}, "--probe-interval=0")
	c, peer := newCapturer(t, cl.hosts[0]), cl.hosts[1]
	files, _, _ := c.inDaemon()

	name, _ := os.Hostname()
	trace := c.begin("trace", peer.addr.String(), "-c", "4")
	if err := errors.Join(echo(a.NS, b.addr, 56), echo(a.NS, b.addr, 56)); err != nil {
		t.Fatal(err)
	}
	if code := trace.wait(patience); code != 0 || !strings.Contains(trace.text(), "4 packets captured, 0 lost") {
		t.Errorf("trace: exit code %d:\n%s", code, trace.text())
	}
	for _, line := range []string{
		fmt.Sprintf(` tx %s %s > %s icmp EchoRequest id \d+ seq \d+ len 56\n`, name, a.addr, b.addr),
		fmt.Sprintf(` rx %s %s > %s icmp EchoReply id \d+ seq \d+ len 56\n`, name, b.addr, a.addr),
	} {
		if n := len(regexp.MustCompile(line).FindAllString(trace.text(), -1)); n != 2 {
			t.Errorf("%d times %q in\n%s", n, line, trace.text())
		}
	}

	// The guard would drop most of a thousand bad packets before the daemon sees them.
	if code, out := overlayd(t, "guard", "off", "--subnet-file", c.subnetFile); code != 0 {
		t.Fatal(out)
	}
	pcapng := filepath.Join(t.TempDir(), "a.pcapng")
	file, drops := c.begin("capture", "-s", "100", "-w", pcapng), c.begin("trace", "--drops")
	if err := errors.Join(echo(a.NS, b.addr, 56), peer.inject(c.addr, 1, netip.MustParseAddr("10.5.200.9"), netip.AddrPortFrom(a.addr, 9))); err != nil {
		t.Fatal(err)
	}
	drops.waitLog("drop:bad_source "+name+" 10.5.200.9:", patience)
	eventually(t, patience, "all drops are printed", func() error {
		if n := strings.Count(drops.text(), "drop:bad_source"); n != crossings {
			return fmt.Errorf("%d of %d", n, crossings)
		}
		return nil
	})
	for _, p := range []*process{file, drops} {
		if code := p.stop(unix.SIGINT); code != 0 || !strings.Contains(p.text(), "packets captured, ") {
			t.Errorf("%s: exit code %d:\n%s", p.name, code, p.text())
		}
	}
	if n := strings.Count(drops.text(), "drop:bad_source"); n != crossings {
		t.Errorf("%d drops were captured, want %d", n, crossings)
	}
	if got, err := os.ReadFile(pcapng); err != nil || !bytes.HasPrefix(got, []byte{0x0a, 0x0d, 0x0d, 0x0a}) || !bytes.Contains(got, []byte(a.addr.AsSlice())) {
		t.Errorf("file of %d bytes: %v", len(got), err)
	}

	c.begin("capture", "-w", "/dev/null").stop(unix.SIGKILL)
	full := c.begin("trace", "-c", "1")
	full.stop(unix.SIGTERM)
	eventually(t, patience, "nothing of the captures is left", func() error {
		if now, begun, ended := c.inDaemon(); now > files || begun != ended {
			return fmt.Errorf("%d files, %d were open before; %d captures begun, %d ended", now, files, begun, ended)
		}
		return nil
	})

	if p := c.overlayd("__complete", "trace", "--subnet-file", c.subnetFile, ""); p.wait(patience) != 0 || !strings.Contains(p.text(), peer.gateway().Masked().String()+"\n") {
		t.Errorf("completion:\n%s", p.text())
	}
	last := c.begin("trace")
	c.daemon.stop(unix.SIGTERM)
	if code := last.wait(patience); code != exitFailure || !strings.Contains(last.text(), "the daemon is about to end") {
		t.Errorf("the daemon ends: exit code %d:\n%s", code, last.text())
	}
}

// TestCaptureRefusals: what cannot be captured is one sentence.
func TestCaptureRefusals(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, 1, testNetwork)
	c := newCapturer(t, cl.hosts[0])
	if err := os.Chmod(socketDir(t, c.host), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		says string
		args []string
	}{
		{"-s 0: want 1 to 262144 bytes", []string{"capture", "-s", "0", "-w", "-"}},
		{"-s -1: want", []string{"capture", "-s", "-1", "-w", "-"}},
		{"-c -1: want 1 packet or more", []string{"capture", "-c", "-1"}},
		{"-c 0: want 1 packet or more", []string{"trace", "-c", "0"}},
		{`"two": want one peer at most`, []string{"trace", "one", "two"}},
		{`-w "": want a file`, []string{"capture", "-w", ""}},
	} {
		c.refused(exitUsage, x.says, x.args...)
	}
	c.refused(exitNoDaemon, "no overlayd answers", "trace")
	without := c
	without.path = "/usr/bin:/bin"
	without.refused(exitFailure, "no overlayd-capture: it is neither in", "trace")
	c.up("--dataplane", modeUserspace)
	c.refused(exitUsage, `peer "nobody": the daemon knows no such peer`, "capture", "nobody", "-w", "/dev/null")
	c.refused(exitUsage, "-w /nowhere/x: no such file or directory", "capture", "-w", "/nowhere/x")
	c.refused(exitFailure, "write /dev/full: no space left on device", "capture", "-w", "/dev/full")
	foreign := exec.Command("/proc/self/exe", "trace", "--subnet-file", c.subnetFile)
	foreign.Env = append(os.Environ(), asOverlayd+"=1", "PATH="+c.path)
	foreign.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, _ := foreign.CombinedOutput(); foreign.ProcessState.ExitCode() != exitFailure || !strings.Contains(string(out), "no right to use the admin socket") {
		t.Errorf("another user:\n%s", out)
	}
	c.daemon.stop(unix.SIGTERM)
	c.up("--dataplane", modeKernel)
	c.refused(exitFailure, "the kernel dataplane does not offer captures: tcpdump -ni flannel.1", "trace")
}
