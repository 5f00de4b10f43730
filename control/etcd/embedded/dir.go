package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

var (
	// ErrDamaged says that etcd cannot use what is in its data directory: see SetAside.
	ErrDamaged = errors.New("the data are damaged")
	// ErrInUse says that another process has the data directory.
	ErrInUse = errors.New("in use by another process")
	// ErrMembers says that the data are those of a cluster of several members, which have them too.
	ErrMembers = errors.New("the data belong to a cluster of several members")
	// ErrGone says that somebody has removed the data directory, or put another one in its place, while etcd ran: see Server.Gone.
	ErrGone = errors.New("it was removed or replaced while etcd ran")
	// ErrAsideBefore says that SetAside has kept as much as it keeps.
	ErrAsideBefore = errors.New("damaged data were moved aside several times before")
)

// lockDir makes the data directory and takes it for this process. etcd itself
// would wait for ever for another process to leave it.
func lockDir(ctx context.Context, dir string, patience time.Duration) (*os.File, error) {
	if dir == "" {
		return nil, errors.New("data directory is empty: name one")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %q: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "overlayd.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %q cannot be written: %w", dir, err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("data directory %q is %w", dir, ErrInUse)
	}
	return nil, fmt.Errorf("lock data directory %q: %w", dir, err)
}

const (
	// room is how much tryDisk writes, in bytes: less, and etcd would end at one of its next writes.
	room = 1 << 20
	// segment is the size of a file of the log, in bytes. etcd makes the next one beforehand, and the default of 64 MB is for clusters that write much.
	segment = 8 << 20
)

func init() { wal.SegmentSizeBytes = segment }

// parts are the directories below the data directory that may be on disks of their own.
var parts = []string{"", "member/wal", "member/snap"}

// tryDisk fails if a disk is full or cannot be written, or if that of the log has less free room than etcd needs there, in bytes. etcd would
// panic, perhaps in the middle of a write.
func tryDisk(dir string, need int64) error {
	log := dir
	for _, part := range parts {
		part = filepath.Join(dir, part)
		err := tryWrite(filepath.Join(part, "overlayd.try"))
		switch {
		case part != dir && errors.Is(err, os.ErrNotExist):
		case err != nil:
			return fmt.Errorf("data directory %q cannot be written: %w", dir, err)
		case strings.HasSuffix(part, "/wal"):
			log = part
		}
	}
	var disk unix.Statfs_t
	if unix.Statfs(log, &disk) != nil {
		return nil
	}
	free := disk.Bavail
	if os.Geteuid() == 0 { // some is reserved for root
		free = disk.Bfree
	}
	if int64(free)*disk.Bsize < need {
		return fmt.Errorf("data directory %q: etcd needs %d MB for its log: %w", dir, need/1e6, unix.ENOSPC)
	}
	return nil
}

func tryWrite(path string) error {
	err := os.WriteFile(path, make([]byte, room), 0o600)
	if rerr := os.Remove(path); err == nil {
		err = rerr
	}
	return err
}

// causes are errors of the kernel that say nothing about the data.
var causes = []syscall.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EACCES, unix.EPERM, unix.EFBIG}

// withCause adds to an error of etcd what is wrong outside of the data, if something is. Not all errors of etcd wrap their cause, and not all name it: a
// log that it cannot repair, because the disk is full, looks damaged.
func withCause(err error, dir string) error {
	if errors.Is(err, fileutil.ErrLocked) {
		return fmt.Errorf("data directory %q: its log is %w: %w", dir, ErrInUse, err)
	}
	if errors.As(err, new(syscall.Errno)) {
		return err
	}
	for _, cause := range causes {
		if strings.Contains(err.Error(), cause.Error()) || cause == unix.EMFILE && strings.Contains(err.Error(), "file descriptor limit") {
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
	if full := tryDisk(dir, 0); full != nil {
		return fmt.Errorf("%w: %w", err, full)
	}
	return err
}

// database returns the path of etcd's database.
func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// Gone returns ErrGone if what the server writes to is not in its data directory any more. etcd itself notices that only when it makes
// its next file, and all that it takes until then is lost.
func (s *Server) Gone() error {
	dir := filepath.Dir(s.lock.Name())
	_, err := os.Stat(database(dir))
	own, oerr := s.lock.Stat()
	there, terr := os.Stat(s.lock.Name())
	if errors.Is(err, os.ErrNotExist) || oerr == nil && terr == nil && !os.SameFile(own, there) {
		return fmt.Errorf("data directory %q: %w: it starts again with what is there now", dir, ErrGone)
	}
	return nil
}

// checkDatabase says that an existing database is damaged before etcd finds it:
// it opens the file in a goroutine of its own and panics there.
func checkDatabase(dir string) error {
	info, err := os.Stat(database(dir))
	if err != nil || info.Size() == 0 {
		return nil // a new one is made
	}
	if err := tryLock(database(dir)); err != nil {
		return fmt.Errorf("data directory %q: database %s is %w", dir, database(dir), err)
	}
	db, err := openDatabase(dir)
	if err != nil {
		return err
	}
	return db.Close()
}

// lockPatience is how long another process may have the database.
const lockPatience = time.Second

// tryLock fails if another process has the database, also one that reads it: etcd would wait for that without a word, and without end.
func tryLock(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(deadline) {
			return ErrInUse
		}
	}
}

// openDatabase opens the database to read it.
func openDatabase(dir string) (*bbolt.DB, error) {
	db, err := bbolt.Open(database(dir), 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err == nil {
		return db, nil
	}
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("data directory %q: database %s is %w", dir, database(dir), ErrInUse)
	}
	err = fmt.Errorf("data directory %q: open database %s: %w", dir, database(dir), err)
	if !errors.As(err, new(syscall.Errno)) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil, err
}

// maxAside is how many damaged databases are kept, so that they do not fill the disk.
const maxAside = 3

// SetAside moves what etcd has in a data directory to a directory beside it, which it returns, so that the next
// Start begins with nothing. Nothing is deleted. It refuses data of several members, as far as they can be read.
func SetAside(ctx context.Context, dir string, patience time.Duration) (aside string, err error) {
	lock, err := lockDir(ctx, dir, patience)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := tryLock(database(dir)); errors.Is(err, ErrInUse) {
		return "", fmt.Errorf("data directory %q: database %s is %w", dir, database(dir), err)
	}
	n, _ := members(dir)
	if n > 1 {
		return "", fmt.Errorf("data directory %q: %w: %d", dir, ErrMembers, n)
	}
	before, _ := filepath.Glob(filepath.Join(dir, "damaged-*")) // the pattern is well-formed
	if len(before) >= maxAside {
		return "", fmt.Errorf("data directory %q: %w: %q", dir, ErrAsideBefore, before)
	}
	aside = filepath.Join(dir, "damaged-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(filepath.Join(dir, "member"), aside); err != nil {
		return "", fmt.Errorf("move damaged data in data directory %q aside: %w", dir, hostfile.Cause(err)) // each attempt has a new name of its own
	}
	return aside, nil
}

// members returns how many members the cluster of the data has, 0 if nobody can tell. An error says that the database cannot be opened.
func members(dir string) (n int, err error) {
	defer func() {
		if recover() != nil { // bbolt's answer to a damaged page
			n = 0
		}
	}()
	if info, err := os.Stat(database(dir)); err != nil || info.Size() == 0 {
		return 0, nil
	}
	db, err := openDatabase(dir)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte("members")); b != nil {
			return b.ForEach(func(_, _ []byte) error { n++; return nil })
		}
		return nil
	})
	return n, nil
}
