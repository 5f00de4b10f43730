package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/overlayd/overlayd/control"
)

// TestUserIsRefusedOnce: that etcd refuses the user is one line, whatever etcd was asked.
func TestUserIsRefusedOnce(t *testing.T) {
	var log bytes.Buffer
	s := &Store{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, ask := range []string{"renew token", "read node record", "read network config"} {
		s.logUser(t.Context(), fmt.Errorf("%s: %w", ask, control.ErrUser))
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, &log)
	}
}
