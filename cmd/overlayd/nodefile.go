package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nodeFile is the claim of one daemon to one subnet file, and holds the node's ID:
// `<subnet file>.node`, locked by fcntl(2). The kernel drops the lock with the
// process however it ends, and names its holder in the asker's own pid
// namespace, so neither a stale file nor a container's pid can mislead.
//
// The ID outlives the process, so that a daemon that was killed is known again in
// the store, and differs between two hosts that publish one address. Below it stand the
// traces of the last session, for a daemon that finds another network config at its start.
type nodeFile struct {
	file *os.File
	id   string
	last traces
}

func nodePath(subnetFile string) string { return subnetFile + nodeSuffix }

const nodeSuffix = ".node"

// idLen is the length of a node ID as text: 16 random bytes in hexadecimal.
const idLen = 32

func newNodeID() string {
	b := make([]byte, idLen/2)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b)
}

// claimNode claims subnetFile for this process. *runningError: another has it.
func claimNode(subnetFile string) (*nodeFile, error) {
	path := nodePath(subnetFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return nil, err
		}
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, writeLock())
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			pid, _, err := holder(f)
			f.Close()
			return nil, errors.Join(&runningError{subnetFile, pid}, err)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !sameFile(f, path) { // cleanup removed it before it was locked
			f.Close()
			continue
		}
		n := &nodeFile{file: f}
		if err := n.read(); err != nil {
			f.Close()
			return nil, err
		}
		return n, nil
	}
}

// maxNodeFile is what is read of a node file, in bytes: more than one has.
const maxNodeFile = 4096

// read reads the ID and the traces, and makes an ID where there is none.
func (n *nodeFile) read() error {
	b, err := io.ReadAll(io.LimitReader(n.file, maxNodeFile))
	if err != nil {
		return fmt.Errorf("read %s: %w", n.file.Name(), err)
	}
	text := string(b)
	if id := text[:min(idLen, len(text))]; len(id) == idLen && isHex(id) {
		n.id, n.last = id, parseTraces(text[idLen:])
		return nil
	}
	n.id = newNodeID()
	return n.remember(traces{})
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil
}

// remember writes what the session that begins will leave.
func (n *nodeFile) remember(t traces) error {
	if n == nil {
		return nil
	}
	n.last = t
	text := n.id + "\n" + t.text()
	if _, err := n.file.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write %s: %w", n.file.Name(), err)
	}
	if err := n.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("cut %s: %w", n.file.Name(), err)
	}
	return nil
}

// release ends the claim; the file stays for the next run.
func (n *nodeFile) release() {
	if n != nil {
		n.file.Close()
	}
}

// remove removes the file and ends the claim.
func (n *nodeFile) remove() error {
	defer n.release()
	return os.Remove(n.file.Name())
}

// runningError says that a daemon runs with this subnet file. Its pid is 0 where
// the daemon lives in another pid namespace.
type runningError struct {
	subnetFile string
	pid        int
}

func (e *runningError) Error() string {
	return fmt.Sprintf("another overlayd (pid %d) is running with --subnet-file %s: stop it, or give this one a subnet file, prefix and VNI of its own", e.pid, e.subnetFile)
}

// running says whether a daemon holds subnetFile, and its pid: 0 where it lives in
// a pid namespace that this process does not see.
func running(subnetFile string) (pid int, held bool, err error) {
	f, err := os.Open(nodePath(subnetFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	return holder(f)
}

func holder(f *os.File) (pid int, held bool, err error) {
	l := writeLock()
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, l); err != nil {
		return 0, false, fmt.Errorf("ask who locks %s: %w", f.Name(), err)
	}
	return max(int(l.Pid), 0), l.Type != unix.F_UNLCK, nil
}

func writeLock() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
