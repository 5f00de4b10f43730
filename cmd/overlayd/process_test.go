package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// patience is how long a test waits for what has to come, if the time is not a promise: a machine that is
// busy, or tests with the race detector, take long.
const patience = slowdown * 30 * time.Second

// promised returns how long a test waits for what has to come within limit: patience on a busy
// machine, because limit is a promise about a machine that has time, and longer with the race detector.
func promised(limit time.Duration) time.Duration {
	if netnstest.Busy() {
		return patience
	}
	return slowdown * limit
}

// process is a child in a namespace whose standard error is kept.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; then err is set
	err  error

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs this test binary in the environment env.
func start(t *testing.T, ns *netnstest.NS, name string, env []string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(env, "GORACE=atexit_sleep_ms=0") // the race detector's second at exit is not the daemon's
	return startCommand(t, ns, name, cmd)
}

// startCommand starts cmd in ns. A process that the test leaves running is killed
// with the test, its children end before the test's files are removed, and its log is shown if the test failed. It does not outlive the test
// binary either, however that ends.
func startCommand(t *testing.T, ns *netnstest.NS, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, done: make(chan struct{}), cmd: cmd}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(unix.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error, 1)
	go func() {
		if err := ns.Do(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			<-p.done // the signal comes when this thread ends
			return nil
		}); err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	w.Close()
	go p.read(r)
	t.Cleanup(func() {
		children := p.children()
		p.stop(unix.SIGKILL)
		for _, pid := range children {
			eventually(t, patience, fmt.Sprintf("%s's child %d ends", name, pid), func() error {
				if lives(pid) {
					return errors.New("it lives")
				}
				return nil
			})
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.text())
		}
	})
	return p
}

// children returns the pids of the children of all the process's threads; each thread has its own.
func (p *process) children() (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// lives reports whether a process runs. One for which nobody waits has no program any more.
func lives(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

func (p *process) read(r *os.File) {
	defer close(p.done)
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		p.mu.Lock()
		p.log.Write(s.Bytes())
		p.log.WriteByte('\n')
		p.mu.Unlock()
	}
	p.err = p.cmd.Wait()
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) waitLog(part string, limit time.Duration) {
	p.t.Helper()
	eventually(p.t, limit, p.name+" logs "+part, func() error {
		if strings.Contains(p.text(), part) {
			return nil
		}
		select {
		case <-p.done:
			p.t.Fatalf("%s ended (%v) before it logged %q:\n%s", p.name, p.err, part, p.text())
		default:
		}
		return fmt.Errorf("not in the log")
	})
}

// stop sends a signal, waits for the end and returns the exit code (-1: killed).
func (p *process) stop(sig unix.Signal) int {
	p.cmd.Process.Signal(sig)
	return p.wait(patience)
}

func (p *process) wait(limit time.Duration) int {
	select {
	case <-p.done:
	case <-time.After(limit):
		p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%s did not end within %s", p.name, limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

// alone is for a test that measures how fast the daemon is, or takes the whole machine. It runs
// by itself, because it does not call t.Parallel: all tests that do come later. And until it
// ends, this process and those that it starts run ahead of what else runs on the machine.
func alone(t *testing.T) {
	t.Helper()
	netnstest.RequireRoot(t)
	netnstest.First(t)
}

// eventually polls until ok returns nil: the longer it takes, the less often, since the tests beside it need the processors, too.
func eventually(t *testing.T, limit time.Duration, what string, ok func() error) {
	t.Helper()
	began := time.Now()
	deadline := began.Add(limit)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", limit, what, err)
		}
		time.Sleep(min(5*time.Millisecond+time.Since(began)/10, 100*time.Millisecond, time.Until(deadline)+time.Millisecond))
	}
}
