package leftovers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestPodCalledFlanneld: a process of another network namespace is no flanneld of this one, also if this process has no right to
// see in which namespace it is.
func TestPodCalledFlanneld(t *testing.T) {
	program := filepath.Join(t.TempDir(), "flanneld")
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	pod := exec.Command(program, "30") // root, with all capabilities, in a network namespace of its own
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { pod.Process.Kill(); pod.Wait() }()
	pid := pod.Process.Pid
	has := func() bool {
		found, err := findFlannelds("/proc")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found, func(f flanneld) bool { return f.pid == pid })
	}
	if has() {
		t.Error("with all rights: taken for a flanneld of this namespace")
	}
	withDaemonsRights(t, func() {
		if has() {
			t.Error("with the rights of a daemon that is set up: process " + strconv.Itoa(pid) + " of another network namespace is taken for a flanneld of this one")
		}
	})
}

// withDaemonsRights calls do with the rights of a daemon that is set up: CAP_NET_ADMIN and CAP_NET_RAW.
func withDaemonsRights(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with its rights
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		keep := uint32(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW)
		d := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
		if err := unix.Capset(&h, &d[0]); err != nil {
			t.Error(err)
			return
		}
		do()
	}()
	<-done
}

// TestBesideWithoutRights: a daemon that has no right to see which subnet file a flanneld has takes it for one of the same network
// only if somebody has just written the file.
func TestBesideWithoutRights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	writeSubnetFile(t, file)
	processtest.Flanneld(t, (*exec.Cmd).Start, "-subnet-file", file)
	count := func(hinted bool) int {
		found, err := FindBeside(file, nil, hinted)
		if err != nil {
			t.Error(err)
		}
		return len(found)
	}
	if n := count(false); n != 1 {
		t.Errorf("with all rights: %d found", n)
	}
	withDaemonsRights(t, func() {
		if plain, hinted := count(false), count(true); plain != 0 || hinted != 1 {
			t.Errorf("with the rights of a daemon that is set up: %d found, and %d after a hint; want 0 and 1", plain, hinted)
		}
	})
}

// TestCheckFlanneldWithoutRights: a flanneld of root has the lease for a daemon that has no right to see more than its command line, if that
// names the subnet file or something says that it is here. One with a file of its own has not.
func TestCheckFlanneldWithoutRights(t *testing.T) {
	file, other, usual := filepath.Join(t.TempDir(), "subnet.env"), filepath.Join(t.TempDir(), "subnet.env"), "/run/flannel/subnet.env"
	writeSubnetFile(t, file)
	writeSubnetFile(t, other)
	processtest.Flanneld(t, (*exec.Cmd).Start, "-subnet-file", file)
	check := func(file string, hinted, want bool) {
		t.Helper()
		if err := CheckFlanneld(file, nil, hinted); errors.Is(err, ErrFlanneldRuns) != want {
			t.Errorf("%v, want %t", err, want)
		}
	}
	check(file, false, true)
	withDaemonsRights(t, func() {
		check(file, false, true)
		check(other, true, false)
	})
	processtest.Flanneld(t, (*exec.Cmd).Start)
	withDaemonsRights(t, func() {
		check(usual, false, false)
		check(usual, true, true)
	})
}
