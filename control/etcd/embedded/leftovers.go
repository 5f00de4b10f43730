package embedded

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// leftovers are the files that an etcd leaves that was killed, or ended because the disk was full, and that no etcd reads again:
// files that it had made for its log beforehand, and a database that was to replace a larger one. They may be what the disk is full
// of: a file of the log has 64 MB.
var leftovers = []string{"wal/?.tmp", "snap/db.tmp.*"}

// torn is what etcd adds to the name of a file of its log for a copy of it, before it repairs that: it cuts off the end, which was written in part.
const torn = ".broken"

// makeRoom removes what is left in the data directory, and fails if etcd would not find the room to start. A repair takes as much as the file has.
// Whether etcd has to do one shows only when it has tried: then there is a copy. If that was whole, there is as much room without it. If the disk
// is full before, the copy stays, but empty, so that not each attempt to start fills the disk.
func makeRoom(dir string, log *slog.Logger) error {
	find := func(pattern string) []string {
		paths, _ := filepath.Glob(filepath.Join(dir, "member", pattern)) // the pattern is well-formed
		return paths
	}
	for _, pattern := range leftovers {
		for _, path := range find(pattern) {
			clearFile(path, os.Remove, log)
		}
	}
	copies, repair := find("wal/*.wal"+torn), int64(0)
	for _, path := range copies {
		clearFile(path, func(path string) error { return os.Truncate(path, 0) }, log)
		if info, err := os.Stat(strings.TrimSuffix(path, torn)); err == nil {
			repair = max(repair, info.Size())
		}
	}
	if err := tryDisk(dir, repair); err != nil {
		return err
	}
	for _, path := range copies {
		clearFile(path, os.Remove, log)
	}
	return nil
}

// clearFile makes room by a file, unless another etcd is about to use it, which has locked it.
func clearFile(path string, by func(path string) error, log *slog.Logger) {
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return
		}
		var info os.FileInfo
		if info, err = f.Stat(); err == nil {
			err = by(path)
		}
		if err == nil && info.Size() > 0 {
			log.Debug("embedded etcd: removed what the etcd before has left", "file", path, "bytes", info.Size())
		}
	}
	if err != nil {
		log.Warn("embedded etcd: what the etcd before has left stays, and takes room", "err", err)
	}
}
