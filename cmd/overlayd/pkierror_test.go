package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/pki"
)

// TestPKIError: whoever calls cannot correct by other arguments what the disk refuses.
func TestPKIError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		usage bool
	}{
		"none":        {nil, false},
		"a file":      {&fs.PathError{Op: "open", Path: "/x", Err: unix.EROFS}, false},
		"a rename":    {&os.LinkError{Op: "rename", Old: "/x", New: "/y", Err: unix.EROFS}, false},
		"nothing yet": {fmt.Errorf("%w: %w", pki.ErrNone, &fs.PathError{Op: "open", Path: "/x", Err: unix.ENOENT}), true},
		"too early":   {pki.ErrNotRotating, true},
	} {
		if err := pkiError(c.err); errors.As(err, new(usageError)) != c.usage || !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
