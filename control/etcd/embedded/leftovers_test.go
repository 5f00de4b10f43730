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

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

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
		"wal.tmp/0.wal":      {size: 100}, // it ended in its first start
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
			l, err := fileutil.LockFile(path, os.O_WRONLY, 0o600) // as etcd does
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
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

// TestCopyThatStays: etcd could not repair its log either.
func TestCopyThatStays(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "member", "wal", "a.wal.broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := makeRoom(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, unix.EISDIR) {
		t.Error(err)
	}
}

// TestFirstStartThatEnded: an etcd that ended before it wrote its first entry does not keep another one from starting.
func TestFirstStartThatEnded(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	node, cluster := uint64(1), uint64(2)
	metadata, err := proto.Marshal(&pb.Metadata{NodeID: &node, ClusterID: &cluster})
	if err != nil {
		t.Fatal(err)
	}
	w, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Config{Dir: dir, ListenClient: "unix://" + filepath.Join(t.TempDir(), "socket"), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
}

// TestFullDiskOfLog: the log may be on a disk of its own.
func TestFullDiskOfLog(t *testing.T) {
	dir, disk := t.TempDir(), smallDisk(t, "12m", 12<<20-segment)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "member"), 0o700), os.Symlink(disk, filepath.Join(dir, "member", "wal"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		taken int
		need  int64
		want  error
	}{{0, segment, nil}, {0, segment + 1, unix.ENOSPC}, {segment, 0, unix.ENOSPC}} {
		if err := os.WriteFile(filepath.Join(disk, "more"), make([]byte, c.taken), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := tryDisk(dir, c.need); !errors.Is(err, c.want) {
			t.Errorf("%d more bytes taken, %d needed: %v, want %v", c.taken, c.need, err, c.want)
		}
	}
}

// TestFewFiles: a limit of open files is not damage.
func TestFewFiles(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "ulimit -n 24; exec "+exe+" -test.run='^TestServerProcess$'")
	cmd.Env = append(os.Environ(), asServer+"=unix://"+filepath.Join(t.TempDir(), "socket")+" "+filepath.Join(t.TempDir(), "data"))
	out, err := cmd.CombinedOutput()
	if text := string(out); err == nil || strings.Contains(text, ErrDamaged.Error()) || !strings.Contains(text, unix.EMFILE.Error()) {
		t.Errorf("%v\n%s", err, out)
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
	const left = 20 << 20
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
	const before = 64e6 // the size of the files of older versions
	if err := errors.Join(os.WriteFile(logs[0], b, 0o600), os.Truncate(logs[0], before)); err != nil {
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
