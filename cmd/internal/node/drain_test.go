package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindDaemon: drain finds the one daemon that it can have been meant for, or says why not.
func TestFindDaemon(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name+".env") }
	pidOf := func(line string) (pid int) {
		if _, err := fmt.Sscanf(line, "%d <nil>", &pid); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return pid
	}
	first, _ := other(t, asHolder, file("red"))
	other(t, asHolder, file("blue"))
	if err := os.WriteFile(nodePath(file("stale")), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files []string
		held  []string
		err   error
	}{
		{"none", []string{file("none"), file("stale")}, nil, nil},
		{"one", []string{file("none"), file("red"), file("stale")}, []string{file("red")}, nil},
		{"two", []string{file("red"), file("blue")}, nil, ErrTwoDaemons},
	} {
		pid, held, err := findDaemon(c.files)
		if !errors.Is(err, c.err) || !slices.Equal(held, c.held) || len(held) > 0 && pid != pidOf(first) {
			t.Errorf("%s: %d, %v, %v, want %v, %v", c.name, pid, held, err, c.held, c.err)
		}
	}
	if got := SubnetFilesIn(dir); !slices.Equal(got, []string{file("blue"), file("red"), file("stale")}) {
		t.Errorf("subnet files %v", got)
	}
}

// TestDrainFromAnotherPIDNamespace: the daemon cannot be told there.
func TestDrainFromAnotherPIDNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	other(t, asHolder, file)
	line, _ := other(t, asDrainer, file, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	})
	if line != ErrOtherPIDNamespace.Error() {
		t.Errorf("got %q", line)
	}
}

// TestNetworksIn: of a subnet file the networks count, whatever else it has.
func TestNetworksIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	if got := networksIn(file); got != nil {
		t.Errorf("no file: %v", got)
	}
	text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_MTU=1450\nFLANNEL_NETWORK=x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(networksIn(file)); got != "[10.5.0.0/16 fd00:5::/48]" {
		t.Errorf("got %s", got)
	}
}
