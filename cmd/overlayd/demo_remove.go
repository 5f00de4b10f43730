package main

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

// demoSubnetFlag is how a daemon of the demo is recognised among all processes:
// its subnet file is in a directory of the demo.
const demoSubnetFlag = "--subnet-file"

const netnsDir = "/run/netns" // where netns and ip-netns(8) keep the names

// lockDemo makes sure that there is one demo at a time. An abstract socket
// leaves no file, and the kernel releases it however this process ends.
func lockDemo() (net.Listener, error) {
	l, err := net.Listen("unix", "@overlayd-demo")
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another overlayd demo is running on this machine")
	}
	return l, err
}

// takeDown removes what this run made: daemons (etcd's last), namespaces with
// all their links, files. It goes on after an error.
func (d *demo) takeDown() error {
	var errs []error
	for i := len(d.hosts) - 1; i >= 0; i-- {
		errs = append(errs, d.hosts[i].stopDaemon())
	}
	namespaces := []*demoNS{d.lan}
	for _, h := range d.hosts {
		namespaces = append(namespaces, h.ns, h.pod)
	}
	for _, n := range namespaces {
		if n != nil {
			n.handle.Close()
		}
	}
	_, err := removeDemo() // finds them all, and what a step left that did not finish
	return errors.Join(append(errs, err)...)
}

// removeDemo removes whatever demo is on this machine and says what it was,
// empty for nothing. The caller holds the lock.
func removeDemo() (removed string, err error) {
	daemons, err1 := stopDemoDaemons()
	names, err2 := removeDemoNamespaces()
	dirs, err3 := removeDemoDirs()
	var said []string
	for _, s := range []struct {
		n    int
		what string
	}{{daemons, "processes"}, {names, "namespaces"}, {dirs, "directories"}} {
		if s.n > 0 {
			said = append(said, fmt.Sprintf("%s: %d", s.what, s.n))
		}
	}
	return strings.Join(said, ", "), errors.Join(err1, err2, err3)
}

// stopDemoDaemons ends every daemon that runs with a subnet file of a demo.
func stopDemoDaemons() (n int, err error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	var stopping []*os.Process
	for _, dir := range procs {
		p := findDemoDaemon(dir)
		if p == nil {
			continue
		}
		defer p.Release()
		if p.Signal(unix.SIGTERM) == nil {
			stopping = append(stopping, p)
		}
	}
	deadline := time.Now().Add(3 * time.Second)
	for _, p := range stopping {
		if !awaitExit(p, deadline) {
			p.Kill()
			if !awaitExit(p, time.Now().Add(time.Second)) {
				err = errors.Join(err, fmt.Errorf("overlayd (pid %d) does not end", p.Pid))
			}
		}
	}
	return len(stopping), err
}

// findDemoDaemon returns the process of a /proc directory if it is a daemon of a
// demo. The process is held by a pidfd before its command line is read, so that
// a signal cannot hit another one that was given the same id.
func findDemoDaemon(dir string) *os.Process {
	var pid int
	if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err != nil || pid == os.Getpid() {
		return nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	exe, exeErr := os.Readlink(filepath.Join(dir, "exe"))
	own, ownErr := os.Executable()
	if err == nil && exeErr == nil && ownErr == nil && isDemoDaemon(string(cmdline), exe, own) {
		return p
	}
	p.Release()
	return nil
}

// isDemoDaemon judges a command line (arguments ended by NUL) and the program
// that runs it; own is this program. A rebuilt program shows as deleted.
func isDemoDaemon(cmdline, exe, own string) bool {
	base := func(path string) string { return filepath.Base(strings.TrimSuffix(path, " (deleted)")) }
	if base(exe) != base(own) {
		return false
	}
	args := strings.Split(cmdline, "\x00")
	for i, a := range args[:len(args)-1] {
		// …/overlayd-demo-123/host1/subnet.env
		if a == demoSubnetFlag {
			return strings.HasPrefix(filepath.Base(filepath.Dir(filepath.Dir(args[i+1]))), demoPrefix)
		}
	}
	return false
}

// awaitExit reports whether p ended in time. One that ended and was not waited
// for by its parent has no program any more.
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

// removeDemoNamespaces removes the names. A namespace and its links end with
// its last name, process and socket.
func removeDemoNamespaces() (n int, err error) {
	names, err := filepath.Glob(filepath.Join(netnsDir, demoPrefix+"*"))
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
	os.Remove(netnsDir) // only if it is empty, that is, if the demo was the first to need it
	return n, err
}

// removeDemoDirs removes logs, subnet files and etcd data. In a directory that
// everybody may write to, only what is root's is the demo's.
func removeDemoDirs() (n int, err error) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), demoPrefix+"*"))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 {
			continue
		}
		if rerr := os.RemoveAll(dir); rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove %s: %w", dir, rerr))
			continue
		}
		n++
	}
	return n, err
}
