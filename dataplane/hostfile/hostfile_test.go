package hostfile

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRead: what is no file, or has no end, is named and keeps nobody waiting.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	socket, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(
		unix.Mkfifo(in("fifo"), 0o600), os.Mkdir(in("dir"), 0o700), os.Symlink("fifo", in("link to fifo")), os.Symlink("/dev/zero", in("link to device")),
		os.WriteFile(in("file"), []byte("text"), 0o600), os.Symlink("file", in("link")), os.Symlink("none", in("dangling")),
		os.WriteFile(in("full"), make([]byte, MaxLen), 0o600), os.WriteFile(in("large"), make([]byte, MaxLen+1), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		want          string // of the error; empty: none
		missing, open bool
	}{
		"file":           {open: true},
		"link":           {open: true},
		"full":           {open: true},
		"large":          {want: "want at most 1048576 bytes", open: true},
		"none":           {want: "no such file", missing: true},
		"dangling":       {want: "no such file", missing: true},
		"fifo":           {want: "want a regular file, not a FIFO"},
		"link to fifo":   {want: "want a regular file, not a FIFO"},
		"link to device": {want: "want a regular file, not a device"},
		"socket":         {want: "want a regular file, not a socket"},
		"dir":            {want: "is a directory"},
	} {
		text, err := Read(in(name))
		if c.want == "" && (err != nil || len(text) == 0) || c.want != "" && (err == nil || text != nil || !strings.Contains(err.Error(), in(name)+": "+c.want)) {
			t.Errorf("%s: %d bytes, %v; want %q", name, len(text), err, c.want)
		}
		if errors.Is(err, fs.ErrNotExist) != c.missing || errors.Is(err, ErrNotRegular) != strings.Contains(c.want, "regular") {
			t.Errorf("%s: %v", name, err)
		}
		if err := Check(in(name)); (err == nil) != (c.open || c.missing) {
			t.Errorf("check %s: %v", name, err)
		}
		f, err := OpenFile(in(name), os.O_RDWR, 0)
		if (err == nil) != c.open {
			t.Errorf("open %s: %v", name, err)
		}
		f.Close()
	}
	if text, err := Read(in("link")); !bytes.Equal(text, []byte("text")) || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}
