package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// claimFile is the lock of the device of a VNI in the host's network namespace.
func (h *host) claimFile(vni int) (path string) {
	h.Must(func() error {
		var s unix.Stat_t
		err := unix.Stat("/proc/thread-self/ns/net", &s)
		path = fmt.Sprintf("/run/flannel/overlayd/%d.%d", s.Ino, vni)
		return err
	})
	return path
}

// lockDevice claims a device as another overlayd would, until the test ends.
func (h *host) lockDevice(vni int) {
	t := h.c.t
	t.Helper()
	path := h.claimFile(vni)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path); f.Close() })
}

// asNobody runs do on a thread that has another user's rights to files.
func asNobody(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		if err := unix.Setfsuid(nobody); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

// TestOtherUsersKeepNoDaemonFromStarting: nothing that another user of the host can hold does: the
// abstract socket that claimed a device once, a read lock on a node file that was readable once, a
// lock on the claim of a device. Nobody gets a device between two sessions.
func TestOtherUsersKeepNoDaemonFromStarting(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.Must(func() error {
		socket, err := net.ListenPacket("unixgram", "@overlayd/flannel.1")
		t.Cleanup(func() { socket.Close() })
		return err
	})
	nodeFile := h.subnetFile + ".node"
	if err := os.WriteFile(nodeFile, []byte(strings.Repeat("0c", 16)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(nodeFile); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // as /run/flannel is
			t.Fatal(err)
		}
	}
	var reader *os.File
	if err := asNobody(func() (err error) {
		if reader, err = os.Open(nodeFile); err != nil {
			return err
		}
		return unix.FcntlFlock(reader.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	}); err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	h.up("--dataplane", modeKernel)
	for _, file := range []string{nodeFile, h.claimFile(1)} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", file, info.Mode(), err)
		}
		if err := asNobody(func() error { f, err := os.Open(file); f.Close(); return err }); !errors.Is(err, os.ErrPermission) {
			t.Errorf("another user opens %s: %v", file, err)
		}
	}
	key := h.key()
	p := h.overlayd("drain", "--subnet-file", h.subnetFile)
	if code := p.wait(patience); code != 0 || c.get(key) != "" {
		t.Errorf("drain: exit code %d, lease %q:\n%s", code, c.get(key), p.text())
	}
}

// TestClaimIsHeldOverSessions: another overlayd that waits for the device does not get it when the
// session of the one that serves it ends and another begins.
func TestClaimIsHeldOverSessions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeKernel)
	other, err := os.OpenFile(h.claimFile(1), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	won, stop := make(chan bool), make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				won <- false
				return
			default:
			}
			if unix.FcntlFlock(other.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil {
				won <- true
				return
			}
		}
	}()
	h.restartSessions(3)
	close(stop)
	if <-won {
		t.Error("another overlayd got the device between two sessions")
	}
}

// restartSessions changes the network config so that the session ends and another begins, n times.
func (h *host) restartSessions(n int) {
	t := h.c.t
	t.Helper()
	for i := range n {
		h.c.put("/coreos.com/network/config", strings.Replace(testNetwork, `"vxlan"`, fmt.Sprintf(`"vxlan","Port":%d`, 4789+i), 1))
		eventually(t, patience, "another session", func() error {
			if n := linesWith(h.daemon.text(), "msg=ready"); n < i+2 {
				return fmt.Errorf("%d sessions", n)
			}
			return nil
		})
	}
}

// TestSessionsBesideAnotherUser: somebody who takes every abstract socket that he can get, whenever
// he can, does not keep a session from beginning.
func TestSessionsBesideAnotherUser(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeKernel)
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			h.Do(func() error {
				socket, err := net.ListenPacket("unixgram", "@overlayd/flannel.1")
				if err != nil {
					return err
				}
				<-stop
				return socket.Close()
			})
		}
	})
	defer group.Wait()
	defer close(stop)
	h.restartSessions(3)
}

// TestSecondDaemonOnOneSubnetFile: it is refused, with the file and the pid of the first, and so
// is cleanup.
func TestSecondDaemonOnOneSubnetFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace)
	code, out := overlayd(t, "--subnet-file", h.subnetFile)
	if code != exitFailure || !strings.Contains(out, h.subnetFile) || !strings.Contains(out, strconv.Itoa(h.daemon.cmd.Process.Pid)) || !strings.Contains(out, "--subnet-file") {
		t.Errorf("second daemon: exit code %d:\n%s", code, out)
	}
	for _, args := range [][]string{{}, {"--rules"}, {"--vni", "1", "--subnet-file", h.subnetFile + ".other"}} {
		p := h.overlayd(append([]string{"cleanup", "--subnet-file", h.subnetFile}, args...)...)
		if code := p.wait(patience); code != exitFailure || !strings.Contains(p.text(), "stop it first") || strings.Contains(p.text(), "of its own") {
			t.Errorf("cleanup %v beside a daemon: exit code %d:\n%s", args, code, p.text())
		}
	}
}
