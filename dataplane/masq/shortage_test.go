package masq

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestToolIsNotStarted: the error of an iptables that cannot be started has its cause, by which others know what helps.
func TestToolIsNotStarted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "iptables")
	if err := os.WriteFile(path, []byte("#!/does/not/exist\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := findTool(t.Context(), ipv4, path); !errors.As(err, new(*fs.PathError)) {
		t.Errorf("got %v", err)
	}
}

// TestRepairWithoutFiles: rules that cannot be repaired because this process may open no more files are a line that says what helps.
func TestRepairWithoutFiles(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := &Rules{config: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	r.warn(&keeper{family: ipv4, err: fmt.Errorf("find iptables: %w", os.NewSyscallError("pipe2", unix.EMFILE))})
	if text := log.String(); !strings.Contains(text, "fix=") || !strings.Contains(text, "nofile") {
		t.Errorf("logged %q", text)
	}
}
