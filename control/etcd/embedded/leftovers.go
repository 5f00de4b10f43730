package embedded

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// leftovers are the files that an etcd leaves that was killed, or ended because the disk was full, and that no etcd reads again:
// files that it had made for its log beforehand, and a database that was to replace a larger one. They may be what the disk is full
// of.
var leftovers = []string{"wal/?.tmp", "wal.tmp/*.wal", "snap/db.tmp.*"}

// torn is what etcd adds to the name of a file of its log for a copy of it, before it repairs that: it cuts off the end, which was written in part.
const torn = ".broken"

// makeRoom removes what is left in the data directory, and fails if etcd would not find the room to start. A repair of the log takes as much as its file has.
// Whether etcd has to do one shows only when it has tried: then there is a copy. If that was whole, there is as much room without it. If the disk
// is full before, the copy stays, but empty, so that not each attempt to start fills the disk.
func makeRoom(dir string, log *slog.Logger) error {
	find := func(pattern string) []string {
		paths, _ := filepath.Glob(filepath.Join(dir, "member", pattern)) // the pattern is well-formed
		return paths
	}
	for _, pattern := range leftovers {
		for _, path := range find(pattern) {
			if err := clearFile(path, os.Remove, log); err != nil {
				log.Warn("embedded etcd: what the etcd before has left stays, and takes room", "err", err)
			}
		}
	}
	if err := removeUnbegun(dir); err != nil {
		return fmt.Errorf("data directory %q: remove the log of an etcd that never ran: %w", dir, err)
	}
	copies, need := find("wal/*.wal"+torn), int64(segment)
	for _, path := range copies {
		if err := clearFile(path, func(path string) error { return os.Truncate(path, 0) }, log); err != nil {
			return fmt.Errorf("data directory %q: etcd could not repair its log: %w", dir, err)
		}
		if info, err := os.Stat(strings.TrimSuffix(path, torn)); err == nil {
			need = max(need, segment+info.Size())
		}
	}
	if err := tryDisk(dir, need); err != nil {
		return err
	}
	for _, path := range copies {
		if err := clearFile(path, os.Remove, log); err != nil {
			return fmt.Errorf("data directory %q: %w", dir, err)
		}
	}
	return nil
}

// clearFile makes room by a file, unless another etcd is about to use it, which has locked it: the log by fcntl, the database by flock.
func clearFile(path string, by func(path string) error, log *slog.Logger) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock) != nil || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	info, err := f.Stat()
	if err == nil {
		err = by(path)
	}
	if err == nil && info.Size() > 0 {
		log.Debug("embedded etcd: removed what the etcd before has left", "file", path, "bytes", info.Size())
	}
	return err
}

// removeUnbegun removes the log of an etcd that ended in its first start, before it wrote who the members of its cluster are. Another etcd would wait
// for these for ever. Nobody had an answer from the first one.
func removeUnbegun(dir string) error {
	path := filepath.Join(dir, "member", "wal")
	if logs, _ := filepath.Glob(filepath.Join(path, "*.wal")); len(logs) != 1 { // the pattern is well-formed
		return nil
	}
	if n, err := members(dir); n > 0 || err != nil {
		return nil
	}
	w, err := wal.OpenForRead(zap.NewNop(), path, &walpb.Snapshot{})
	if err != nil {
		return nil // etcd says what is wrong
	}
	defer w.Close()
	if _, state, entries, err := w.ReadAll(); err != nil || len(entries) > 0 || !raft.IsEmptyHardState(state) {
		return nil
	}
	return os.RemoveAll(path)
}
