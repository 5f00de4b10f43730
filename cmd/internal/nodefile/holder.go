package nodefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// The errors of FindDaemon that need something from the user.
var (
	ErrOtherPIDNamespace = errors.New("the daemon runs in another pid namespace")
	ErrTwoDaemons        = errors.New("two daemons are running")
)

// SubnetFilesIn finds the subnet files of a daemon that serves several networks, by the node
// files beside them.
func SubnetFilesIn(dir string) (files []string) {
	found, _ := filepath.Glob(filepath.Join(dir, "*.env"+suffix)) // the pattern is well-formed
	for _, f := range found {
		files = append(files, f[:len(f)-len(suffix)])
	}
	return files
}

// NetworkOf returns the name of the network that a subnet file of several is for.
func NetworkOf(subnetFile string) string {
	return strings.TrimSuffix(filepath.Base(subnetFile), ".env")
}

// RunningError says that another daemon runs with a subnet file.
type RunningError struct {
	SubnetFile string
	PID        int  // 0: it is in another pid namespace
	Ends       bool // it was killed, and the kernel closes its files
}

// Error implements error.
func (e *RunningError) Error() string {
	who := fmt.Sprintf("pid %d", e.PID)
	switch {
	case e.Ends:
		who = "about to end"
	case e.PID == 0:
		who = "in another pid namespace"
	}
	return fmt.Sprintf("another overlayd (%s) is running with subnet file %s", who, e.SubnetFile)
}

// Holder reports whether a daemon holds subnetFile, and its pid: 0 if it is in a pid namespace
// that this process does not see.
func Holder(subnetFile string) (pid int, held bool, err error) {
	path := Path(subnetFile)
	for {
		f, err := hostfile.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		h, err := claim.HolderOf(f)
		replaced := err == nil && !h.Held && !claim.IsAt(f, path) // the daemon holds the new one
		f.Close()
		if !replaced {
			return h.PID, h.Held && !h.Reader, err
		}
	}
}

// FindDaemon finds the daemon of these subnet files, and which of them it holds. If no daemon runs, held is empty.
// Its errors are ErrTwoDaemons (only one can have been meant), ErrOtherPIDNamespace, and that of a file that
// cannot be read.
func FindDaemon(files []string) (pid int, held []string, err error) {
	for _, file := range files {
		now, is, err := Holder(file)
		switch {
		case err != nil:
			return 0, nil, fmt.Errorf("find the daemon: %w", err)
		case is && now == 0:
			return 0, nil, ErrOtherPIDNamespace
		case is && len(held) > 0 && now != pid:
			return 0, nil, fmt.Errorf("%w: that of %s (pid %d) and that of %s (pid %d)", ErrTwoDaemons, held[0], pid, file, now)
		case is:
			pid, held = now, append(held, file)
		}
	}
	return pid, held, nil
}
