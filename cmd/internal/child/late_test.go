package child

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLate: a child that is neither ready nor ends, as one that waits for a disk, is reported, and waited for. The next one may work.
func TestLate(t *testing.T) {
	p, log := runLate(t, 100*time.Millisecond, "waits", "serves")
	eventually(t, "a report", func() bool { return p.Status().Err != "" })
	s := p.Status()
	if s.Running || s.Since.IsZero() || s.Starts != 1 {
		t.Errorf("status %+v", s)
	}
	eventually(t, "both lines", func() bool {
		return strings.Contains(log.String(), "part is not ready yet") && strings.Contains(log.String(), "msg=waits")
	})
	_, after, _ := strings.Cut(log.String(), "msg=waits by=")
	pid, err := strconv.Atoi(after[:strings.IndexByte(after, '\n')])
	if err != nil {
		t.Fatal(err)
	}
	unix.Kill(pid, unix.SIGKILL)
	eventually(t, "a child that works", func() bool { s := p.Status(); return s.Running && s.Err == "" })
}
