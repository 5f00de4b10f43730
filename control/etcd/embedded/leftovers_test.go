package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestLeftovers: what no etcd reads again goes, unless an etcd is about to use it.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	files := map[string]struct {
		size         int64
		locked, left bool
	}{
		"wal/0.tmp":          {size: 100},
		"wal/1.tmp":          {size: 100, locked: true, left: true},
		"wal/a.wal":          {size: 300, left: true},
		"wal/a.wal.broken":   {size: 200},
		"wal/b.wal.broken":   {size: 200}, // etcd has removed b.wal
		"snap/db.tmp.123":    {size: 100},
		"snap/db":            {size: 100, left: true},
		"snap/1.snap.broken": {size: 100, left: true},
	}
	var want []string
	for name, f := range files {
		path := filepath.Join(dir, "member", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, f.size), 0o600)); err != nil {
			t.Fatal(err)
		}
		if f.left {
			want = append(want, path)
		}
		if f.locked {
			l, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := unix.Flock(int(l.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
	}
	var log bytes.Buffer
	if err := makeRoom(dir, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "member", "*", "*"))
	if slices.Sort(want); err != nil || !slices.Equal(left, want) {
		t.Errorf("left: %q, %v, want %q", left, err, want)
	}
	if n := strings.Count(log.String(), "level=DEBUG"); n != len(files)-len(want) {
		t.Errorf("%d lines about %d files:\n%s", n, len(files)-len(want), &log)
	}
}

// TestTornLog: etcd repairs a log that ends in the middle of a write. If there is no room for that, the disk is to blame and not the data;
// other attempts leave the room there is, and etcd runs once there is enough.
func TestTornLog(t *testing.T) {
	disk := netnstest.SmallDisk(t, "size=200m")
	dir := filepath.Join(disk, "data")
	cfg := Config{Dir: dir, ListenClient: "unix://" + filepath.Join(t.TempDir(), "socket"), NoFsync: true}
	value := func(put string) (got string) {
		t.Helper()
		s, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		c, err := clientv3.New(clientv3.Config{Endpoints: s.URLs(), Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if put != "" {
			if _, err := c.Put(t.Context(), "k", put); err != nil {
				t.Fatal(err)
			}
		}
		r, err := c.Get(t.Context(), "k")
		if err != nil || len(r.Kvs) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		return string(r.Kvs[0].Value)
	}
	value("kept")
	tear(t, dir)
	const left = 10 << 20
	taken := filepath.Join(disk, "taken")
	if err := os.WriteFile(taken, make([]byte, free(t, disk)-left), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestServerProcess$") // etcd ends its process
		cmd.Env = append(os.Environ(), asServer+"="+cfg.ListenClient+" "+dir)
		out, err := cmd.CombinedOutput()
		if text := string(out); err == nil || !strings.Contains(text, unix.ENOSPC.Error()) || strings.Contains(text, ErrDamaged.Error()) {
			t.Errorf("start %d on a disk without room: %v\n%s", i, err, out)
		}
		if n := free(t, disk); i > 0 && n < left/2 {
			t.Errorf("start %d left %d bytes", i, n)
		}
	}
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	if got := value(""); got != "kept" {
		t.Errorf("after the repair: %q", got)
	}
}

// tear writes the beginning of a record behind the last one of the log.
func tear(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %q, %v", logs, err)
	}
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	const size = 4096
	end := (len(bytes.TrimRight(b, "\x00")) + 7) &^ 7
	record := append(binary.LittleEndian.AppendUint64(nil, size), strings.Repeat("x", size/4)...)
	copy(b[end:], record)
	if err := os.WriteFile(logs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// free returns how many bytes a disk has left.
func free(t *testing.T, disk string) int64 {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(disk, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}
