package node

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

	"github.com/overlayd/overlayd/cmd/internal/claim"
)

// nodeFile is the claim of one daemon to one subnet file, and holds the node's ID: it is
// `<subnet file>.node`, of mode 0600, and locked as long as its daemon lives (package claim).
//
// The ID outlives the process, so that a daemon that was killed is known again in the store, and
// differs between two hosts that publish one address. Below it stand the leftovers of the last
// session, for a daemon that finds another network config at its start, and the addresses that this
// node has published, which tell what is its own in the store and on its device, and the time of the
// subnet file that it has written (written.go).
type nodeFile struct {
	file      *os.File
	id        string
	left      leftovers
	published []netip.Addr // the last ones first
	written   int64        // modification time of the subnet file, Unix nanoseconds; 0: not known
	isNew     bool         // no daemon has had it
}

// maxPublished bounds how many addresses are remembered.
const maxPublished = 8

func nodePath(subnetFile string) string { return subnetFile + nodeSuffix }

const nodeSuffix = ".node"

// idLen is the length of a node ID as text: 16 random bytes in hexadecimal.
const idLen = 32

// newNodeID returns an ID that no other node has.
func newNodeID() string {
	b := make([]byte, idLen/2)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b)
}

// claimNode claims subnetFile for this process. *RunningError: another has it.
func claimNode(subnetFile string) (*nodeFile, error) {
	path := nodePath(subnetFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := claim.Open(path)
	if other := new(claim.LockedError); errors.As(err, &other) {
		return nil, &RunningError{subnetFile, other.PID}
	}
	if err != nil {
		return nil, err
	}
	n := &nodeFile{file: f}
	if err := n.read(); err != nil {
		f.Close()
		return nil, err
	}
	return n, nil
}

// maxNodeFile bounds how much is read of a node file, in bytes: more than one has.
const maxNodeFile = 4096

// read reads the ID and the leftovers, and makes an ID if the file has no ID.
func (n *nodeFile) read() error {
	b, err := io.ReadAll(io.LimitReader(n.file, maxNodeFile))
	if err != nil {
		return fmt.Errorf("read %s: %w", n.file.Name(), err)
	}
	text := string(b)
	if id := text[:min(idLen, len(text))]; len(id) == idLen && isHex(id) {
		n.id, n.left, n.published = id, parseLeftovers(text[idLen:]), parsePublished(text[idLen:])
		n.written = parseWritten(text[idLen:])
		return nil
	}
	n.id, n.isNew = newNodeID(), true
	return n.remember(leftovers{})
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil
}

// remember writes what the session that begins will leave.
func (n *nodeFile) remember(left leftovers) error {
	if n == nil {
		return nil
	}
	n.left = left
	return n.write()
}

// publish writes which addresses the session that begins publishes, and returns those that it does
// not, but an earlier one did.
func (n *nodeFile) publish(addrs []netip.Addr) (former []netip.Addr, err error) {
	if n == nil {
		return nil, nil
	}
	for _, a := range n.published {
		if !slices.Contains(addrs, a) {
			former = append(former, a)
		}
	}
	all := slices.Concat(addrs, former)
	n.published = all[:min(len(all), maxPublished)]
	return former, n.write()
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

func (n *nodeFile) write() error {
	text := n.id + "\n" + n.left.text()
	for _, a := range n.published {
		text += fmt.Sprintf("public %s\n", a)
	}
	if n.written != 0 {
		text += fmt.Sprintf("%s%d\n", writtenKey, n.written)
	}
	if _, err := n.file.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write %s: %w", n.file.Name(), err)
	}
	if err := n.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("truncate %s: %w", n.file.Name(), err)
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

// RunningError says that another daemon runs with a subnet file.
type RunningError struct {
	SubnetFile string
	PID        int // 0: it is in another pid namespace
}

// Error implements error.
func (e *RunningError) Error() string {
	return fmt.Sprintf("another overlayd (pid %d) is running with subnet file %s", e.PID, e.SubnetFile)
}

// running reports whether a daemon holds subnetFile, and its pid: 0 if it is in a pid namespace
// that this process does not see.
func running(subnetFile string) (pid int, held bool, err error) {
	f, err := os.Open(nodePath(subnetFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	h, err := claim.HolderOf(f)
	return h.PID, h.Held && !h.Reader, err
}
