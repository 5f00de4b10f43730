//go:build cgo

package parts

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestBatchWithCgo: a build that cannot change its scheduling policy says so, and what to do.
func TestBatchWithCgo(t *testing.T) {
	var log bytes.Buffer
	batch(slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "scheduling policy not changed") || !strings.Contains(log.String(), "CGO_ENABLED=0") {
		t.Errorf("logged %q", log.String())
	}
}
