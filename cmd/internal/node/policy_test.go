package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPolicy: a daemon that forwards does not interrupt others, one that hands over does, and a policy that others have set stays. A build
// with cgo cannot change its policy, and says so, and what to do.
func TestPolicy(t *testing.T) {
	var log bytes.Buffer
	is := func(want uint32) {
		t.Helper()
		if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy != want {
			t.Errorf("policy %+v, %v; want %d", a, err, want)
		}
	}
	p := new(policy)
	p.batch(slog.New(slog.NewTextHandler(&log, nil)))
	if text := log.String(); text != "" {
		if !strings.Contains(text, "scheduling policy not changed") || !strings.Contains(text, "CGO_ENABLED=0") {
			t.Errorf("logged %q", text)
		}
		is(unix.SCHED_NORMAL)
		return
	}
	is(unix.SCHED_BATCH)
	other := new(policy)
	other.batch(slog.New(slog.DiscardHandler))
	other.hurry() // it is not its own
	is(unix.SCHED_BATCH)
	p.hurry()
	is(unix.SCHED_NORMAL)
}
