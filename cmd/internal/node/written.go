package node

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// The node file remembers when the daemon wrote its subnet file. A flanneld that takes the host over
// writes that file too, often with the same content, but always at another time.

const writtenKey = "wrote "

// wrote notes the modification time of the subnet file that the daemon has written.
func (n *nodeFile) wrote(modified time.Time) error {
	if n == nil || n.written == modified.UnixNano() {
		return nil
	}
	n.written = modified.UnixNano()
	return n.write()
}

// hasWritten reports whether a subnet file that is there may be the work of a daemon with this node file.
func (n *nodeFile) hasWritten(subnetFile string) bool {
	info, err := os.Stat(subnetFile)
	switch {
	case err != nil || n == nil:
		return true
	case n.written == 0: // that of an older daemon
		return !n.isNew
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
