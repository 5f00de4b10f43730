package nodefile

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/claim"
)

// Unclaimed is a File for a daemon that goes on although Claim has failed. Settle claims the file once that can be done.
func Unclaimed(subnetFile string) *File {
	return &File{path: Path(subnetFile), ID: NewID(), IsNew: true, written: neverWritten, unsaved: true}
}

// takePath makes the path that of a claim of this process, unless another process has claimed it. It is called with mu held.
func (n *File) takePath() error {
	if err := os.MkdirAll(filepath.Dir(n.path), 0o755); err != nil {
		return err
	}
	f, err := claim.Open(n.path)
	if other := new(claim.LockedError); errors.As(err, &other) {
		return &RunningError{strings.TrimSuffix(n.path, suffix), other.PID, other.Ends}
	}
	if err != nil {
		return err
	}
	if n.file != nil {
		claim.Close(n.file)
		n.file = f
		return nil
	}
	return n.learn(f)
}

// learn takes over what the file says that this daemon could not open when it began. The store knows the daemon by its own ID by now.
func (n *File) learn(f *os.File) error {
	text, err := (&File{file: f, path: n.path}).text()
	if err != nil {
		claim.Close(f)
		return err
	}
	n.file, n.before = f, parseLeft(text)
	more := slices.DeleteFunc(parsePublished(text), func(a netip.Addr) bool { return slices.Contains(n.published, a) })
	n.published = append(n.published, more[:min(len(more), maxPublished-len(n.published))]...)
	if n.config == "" {
		n.config = parseConfig(text)
	}
	if n.written == neverWritten && text != "" {
		n.written = parseWritten(text)
	}
	return nil
}
