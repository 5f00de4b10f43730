// Package nodefile reads, writes and locks the node file, which stands beside a subnet file. The node file says which node
// this is, what its last session has left and published, and when the subnet file was written. The daemon holds its
// lock for as long as it lives, so that others see that a daemon serves the subnet file ([Holder]).
package nodefile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// File is the claim of one daemon to one subnet file, and holds the node's ID: it is
// `<subnet file>.node`, of mode 0600, and locked as long as its daemon lives (package claim).
//
// The ID outlives the process, so that a daemon that was killed is known again in the store, and
// differs between two hosts that publish one address. Below it stand the leftovers of the last
// session, for a daemon that finds another network config at its start, and the addresses that this
// node has published, which tell what is its own in the store and on its device, and the time of the
// subnet file that it has written (written.go).
//
// What could not be written, as on a full disk, is written by Settle. Several goroutines may call the methods.
type File struct {
	mu        sync.Mutex
	unsaved   bool     // the file has not what is below
	given     bool     // another process has it, see HandOver
	file      *os.File // the claim; nil: the file is not claimed yet
	path      string
	ID        string       // of the node, as [NewID] makes it
	Left      Left         // by the last session
	before    Left         // by a daemon before, which this one did not know when it began
	IsNew     bool         // no daemon has had the file
	published []netip.Addr // the last ones first
	drained   bool         // the daemon that writes the file has given its lease back
	config    string       // of the network, in the last session
	written   int64        // modification time of the subnet file, Unix nanoseconds; or 0 or neverWritten
}

// maxPublished bounds how many addresses are remembered.
const maxPublished = 8

// Path returns the path of the node file that belongs to a subnet file.
func Path(subnetFile string) string { return subnetFile + suffix }

const suffix = ".node"

// idLen is the length of a node ID as text: 16 random bytes in hexadecimal.
const idLen = 32

// NewID returns an ID that no other node has.
func NewID() string {
	b := make([]byte, idLen/2)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b)
}

// Claim claims subnetFile for this process. *RunningError: another has it. If that has handed over its lock,
// this is taken, and nobody else can get in between; locks are closed otherwise.
func Claim(subnetFile string, locks ...carrier.Export) (*File, error) {
	path := Path(subnetFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := claim.OpenWith(path, locks)
	if other := new(claim.LockedError); errors.As(err, &other) {
		return nil, &RunningError{subnetFile, other.PID, other.Ends}
	}
	if err != nil {
		return nil, err
	}
	n := &File{file: f, path: path}
	if err := n.read(); err != nil {
		claim.Close(f)
		return nil, err
	}
	return n, nil
}

// IsClaimed reports whether the file is this process's, and has its name.
func (n *File) IsClaimed() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.file != nil && !n.given && claim.IsAt(n.file, n.path)
}

// maxNodeFile bounds how much is read of a node file, in bytes. No daemon writes that much.
const maxNodeFile = 4096

// read reads the ID and the leftovers, and makes an ID if the file has no ID. It is not an error if that
// cannot be written: Settle says so.
func (n *File) read() error {
	text, err := n.text()
	if err != nil {
		return err
	}
	if id := text[:min(idLen, len(text))]; len(id) == idLen && isHex(id) {
		n.ID, n.Left, n.published = id, parseLeft(text[idLen:]), parsePublished(text[idLen:])
		n.written, n.config = parseWritten(text[idLen:]), parseConfig(text[idLen:])
		n.unsaved = hasDrained(text) // that was another daemon
		return nil
	}
	n.ID, n.IsNew, n.written = NewID(), true, neverWritten
	_ = n.Remember(Left{})
	return nil
}

// Settle writes what could not be written before, or was removed, and returns why it still cannot.
func (n *File) Settle() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unsaved && claim.IsAt(n.file, n.path) {
		return nil
	}
	return n.write()
}

func (n *File) text() (string, error) {
	b, err := io.ReadAll(io.LimitReader(n.file, maxNodeFile))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", n.path, err)
	}
	return string(b), nil
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil
}

// Remember writes what the session that begins will leave.
func (n *File) Remember(left Left) error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Left = left
	return n.write()
}

// Publish writes which addresses the session that begins publishes, and returns those that it does
// not, but an earlier one did.
func (n *File) Publish(addrs []netip.Addr) (former []netip.Addr, err error) {
	if n == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	former = n.former(addrs)
	all := slices.Concat(addrs, former)
	n.published = all[:min(len(all), maxPublished)]
	return former, n.write()
}

// Former returns the addresses that an earlier session has published and that are not among addrs. It writes nothing.
func (n *File) Former(addrs []netip.Addr) []netip.Addr {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.former(addrs)
}

// former is called with mu held.
func (n *File) former(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.published), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

// parsePublished reads the addresses that write has written, and skips the rest.
func parsePublished(text string) (addrs []netip.Addr) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "public ")
		value, whole := strings.CutSuffix(value, "\n")
		if a, err := netip.ParseAddr(value); ok && whole && err == nil && len(addrs) < maxPublished {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// write is called with mu held.
func (n *File) write() error {
	if n.given {
		return nil // it is the other process's to write
	}
	if n.file == nil || !claim.IsAt(n.file, n.path) {
		if err := n.takePath(); err != nil {
			n.unsaved = true
			return err
		}
	}
	text := n.ID + "\n" + n.Left.text() + n.before.Without(n.Left).text()
	for _, a := range n.published {
		text += fmt.Sprintf("public %s\n", a)
	}
	if n.drained {
		text += drainedLine
	}
	if n.config != "" {
		text += configKey + n.config + "\n"
	}
	if n.written != 0 {
		text += fmt.Sprintf("%s%d\n", writtenKey, n.written)
	}
	if n.holds(text) {
		n.unsaved = false
		return nil // a write that waits for the disk would keep a daemon that starts from forwarding
	}
	next, err := claim.Replace(n.file, n.path, []byte(text))
	if n.unsaved = err != nil; n.unsaved {
		return fmt.Errorf("write %s: %w", n.path, err)
	}
	n.file = next
	return nil
}

// holds reports whether the file has exactly this text, under its name and with its mode.
func (n *File) holds(text string) bool {
	own, err := n.file.Stat()
	if err != nil || own.Mode() != 0o600 {
		return false
	}
	named, err := os.Lstat(n.path)
	if err != nil || !os.SameFile(own, named) {
		return false
	}
	b, err := io.ReadAll(io.NewSectionReader(n.file, 0, maxNodeFile))
	return err == nil && string(b) == text
}

const drainedLine = "drained\n"

func hasDrained(text string) bool { return strings.Contains(text, "\n"+drainedLine) }

// Drained notes that this daemon has given its lease back.
func (n *File) Drained() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drained = true
	return n.write()
}

// WasDrained reports whether the daemon that had subnetFile last has given its lease back. Older daemons do not note that.
func WasDrained(subnetFile string) bool {
	f, err := hostfile.Open(Path(subnetFile))
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNodeFile))
	return err == nil && hasDrained(string(b))
}

// Release ends the claim; the file stays for the next run.
func (n *File) Release() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.file == nil:
	case n.given:
		n.file.Close() // not the lock, which the other process has
	default:
		claim.Close(n.file)
	}
}

// LockName is the name of the lock of subnetFile when it is handed over.
func LockName(subnetFile string) string { return "lock " + Path(subnetFile) }

// HandOver returns the lock for Claim of another process. From then on the file is that one's.
func (n *File) HandOver() ([]carrier.Export, error) {
	if n == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		return nil, nil
	}
	e, err := carrier.ExportFile(n.file, "lock "+n.path, 0)
	if err != nil {
		return nil, err
	}
	n.given = true
	return []carrier.Export{e}, nil
}

// Remove removes the file and ends the claim.
func (n *File) Remove() error {
	defer n.Release()
	return os.Remove(n.path)
}
