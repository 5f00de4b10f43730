package nodefile

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// The node file remembers when the daemon wrote its subnet file. A flanneld that takes the host over
// writes that file too, often with the same content, but always at another time.

const writtenKey = "wrote "

// neverWritten says that no daemon with this node file has written its subnet file. An older daemon's file does not
// say so: there it is not known, which is 0.
const neverWritten = -1

// Wrote notes the modification time of the subnet file that the daemon has written.
func (n *File) Wrote(modified time.Time) error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.written == modified.UnixNano() {
		return nil
	}
	n.written = modified.UnixNano()
	return n.write()
}

// HasWritten reports whether a subnet file that is there may be the work of a daemon with this node file.
func (n *File) HasWritten(subnetFile string) bool {
	info, err := os.Stat(subnetFile)
	if err != nil || n == nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.written == 0 { // that of an older daemon
		return true
	}
	return info.ModTime().UnixNano() == n.written
}

func parseWritten(text string) (nanoseconds int64) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, writtenKey)
		if value, whole := strings.CutSuffix(value, "\n"); ok && whole {
			nanoseconds, _ = strconv.ParseInt(value, 10, 64) // 0: not known
		}
	}
	return nanoseconds
}
