// Package processtest runs a test binary a second time, as another process that takes part in a test.
package processtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Run runs this test binary with an environment variable set, by which its TestMain tells what it is to do,
// and returns the first line that it prints and what ends it. The process ends with the test at the latest:
// that process must end when its standard input ends.
func Run(t *testing.T, variable, value string, change ...func(*exec.Cmd)) (line string, end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"="+value)
	for _, c := range change {
		c(cmd)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() { // a test may end it at any time
		in.Close()
		cmd.Wait()
	})
	t.Cleanup(end)
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read what %s printed: %v", variable, err)
	}
	return strings.TrimSpace(line), end
}

// Flanneld runs a process that looks like flanneld until the test ends.
func Flanneld(t *testing.T, start func(*exec.Cmd) error, args ...string) (pid int) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "flanneld")
	syscall.ForkLock.RLock() // a child that inherits the file while it is written keeps it from being executed
	err := os.WriteFile(program, []byte("#!/bin/sh\necho up\nread x\n"), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}
