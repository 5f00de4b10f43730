package testbed

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// SubnetFileFlag is the flag by which a testbed's daemon is recognised among all
// processes: its subnet file is in a directory of the testbed.
const SubnetFileFlag = "--subnet-file"

const netnsDir = "/run/netns" // where netns and ip-netns(8) keep the names

// stopPatience is how long a daemon may take to stop.
const stopPatience = 3 * time.Second

// Prefix begins the name of everything of a testbed that outlives a call. By it a
// later run finds what an earlier one left. It ends with "-".
type Prefix string

// ErrRunning means that another process has a testbed of this prefix.
var ErrRunning = errors.New("another one is running on this machine")

// Lock makes sure that there is one testbed of this prefix at a time, until the
// caller closes it. An abstract socket leaves no file, and the kernel releases it
// however this process ends.
func (p Prefix) Lock() (net.Listener, error) {
	l, err := net.Listen("unix", "@"+strings.TrimSuffix(string(p), "-"))
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, ErrRunning
	}
	return l, err
}

// Remove removes every testbed of this prefix from the machine and returns what it
// was, or "" for nothing. The caller holds the lock.
func (p Prefix) Remove() (removed string, err error) {
	daemons, err1 := p.stopDaemons()
	names, err2 := p.removeNamespaces()
	dirs, err3 := p.removeDirs()
	var parts []string
	for _, s := range []struct {
		n    int
		what string
	}{{daemons, "processes"}, {names, "namespaces"}, {dirs, "directories"}} {
		if s.n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", s.what, s.n))
		}
	}
	return strings.Join(parts, ", "), errors.Join(err1, err2, err3)
}

// stopDaemons ends every daemon whose subnet file belongs to the prefix.
func (p Prefix) stopDaemons() (n int, err error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	var stopping []*os.Process
	for _, dir := range procs {
		daemon := p.findDaemon(dir)
		if daemon == nil {
			continue
		}
		defer daemon.Release()
		if daemon.Signal(unix.SIGTERM) == nil {
			stopping = append(stopping, daemon)
		}
	}
	deadline := time.Now().Add(stopPatience)
	for _, daemon := range stopping {
		if awaitExit(daemon, deadline) {
			continue
		}
		daemon.Kill()
		if !awaitExit(daemon, time.Now().Add(time.Second)) {
			err = errors.Join(err, fmt.Errorf("daemon (pid %d) does not end", daemon.Pid))
		}
	}
	return len(stopping), err
}

// findDaemon returns the process of a /proc directory if it is a daemon of the
// prefix. A pidfd holds the process before its command line is read, so that a
// signal cannot hit another one that was given the same id.
func (p Prefix) findDaemon(dir string) *os.Process {
	var pid int
	if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err != nil || pid == os.Getpid() {
		return nil
	}
	proc, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	exe, exeErr := os.Readlink(filepath.Join(dir, "exe"))
	own, ownErr := os.Executable()
	if err == nil && exeErr == nil && ownErr == nil && p.isDaemon(string(cmdline), exe, own) {
		return proc
	}
	proc.Release()
	return nil
}

// isDaemon judges a command line (arguments ended by NUL) and the program that runs
// it; own is this program. A rebuilt program shows as deleted.
func (p Prefix) isDaemon(cmdline, exe, own string) bool {
	base := func(path string) string { return filepath.Base(strings.TrimSuffix(path, " (deleted)")) }
	if base(exe) != base(own) {
		return false
	}
	args := strings.Split(cmdline, "\x00")
	for i, a := range args[:len(args)-1] {
		// <prefix>123/host1/subnet.env
		if a == SubnetFileFlag {
			return strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(args[i+1]))), string(p))
		}
	}
	return false
}

// awaitExit reports whether a process ended in time. One that ended and that its
// parent has not waited for has no program any more.
func awaitExit(p *os.Process, deadline time.Time) bool {
	for {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Pid)); err != nil {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// removeNamespaces removes the names. A namespace and its links end with its last
// name, process and socket.
func (p Prefix) removeNamespaces() (n int, err error) {
	names, err := filepath.Glob(filepath.Join(netnsDir, string(p)+"*"))
	if err != nil || len(names) == 0 {
		return 0, err
	}
	for _, path := range names {
		derr := netns.DeleteNamed(filepath.Base(path))
		if errors.Is(derr, unix.EINVAL) { // nothing is mounted: the run ended between the two steps of making it
			derr = os.Remove(path)
		}
		if derr != nil {
			err = errors.Join(err, fmt.Errorf("remove network namespace %s: %w", filepath.Base(path), derr))
			continue
		}
		n++
	}
	os.Remove(netnsDir) // succeeds only if it is empty, that is, if the testbed was the first to need it
	return n, err
}

// removeDirs removes the directories of the hosts' files.
func (p Prefix) removeDirs() (n int, err error) {
	dirs, err := OwnDirs(string(p))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if rerr := os.RemoveAll(dir); rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove %s: %w", dir, rerr))
			continue
		}
		n++
	}
	return n, err
}

// OwnDirs lists the directories in the directory for temporary files whose names
// begin with prefix. Everybody may write there, so only root's count.
func OwnDirs(prefix string) (dirs []string, err error) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range found {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == 0 {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}
