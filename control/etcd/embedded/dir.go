package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

var (
	// ErrDamaged says that etcd cannot use what is in its data directory: see SetAside.
	ErrDamaged = errors.New("the data are damaged")
	// ErrInUse says that another process has the data directory.
	ErrInUse = errors.New("in use by another process")
	// ErrMembers says that the data are those of a cluster of several members, which have them too.
	ErrMembers = errors.New("the data belong to a cluster of several members")
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

// room is how much tryDisk writes, in bytes: less, and etcd would end at one of its next writes.
const room = 1 << 20

// tryDisk fails if the disk is full or cannot be written, or has less room than etcd needs at its start to repair its log, in bytes. etcd would
// panic, perhaps in the middle of a write.
func tryDisk(dir string, repair int64) error {
	path := filepath.Join(dir, "overlayd.try")
	err := os.WriteFile(path, make([]byte, room), 0o600)
	if rerr := os.Remove(path); err == nil {
		err = rerr
	}
	var disk unix.Statfs_t
	if err == nil && repair > 0 && unix.Statfs(dir, &disk) == nil && int64(disk.Bavail)*disk.Bsize < repair {
		err = fmt.Errorf("etcd repairs its log, which takes %d MB: %w", repair/1e6, unix.ENOSPC)
	}
	if err != nil {
		return fmt.Errorf("data directory %q cannot be written: %w", dir, err)
	}
	return nil
}

// withDisk adds to an error of etcd why the disk cannot be written now, if that is so. Not all errors of etcd have that cause in them: a
// log that it cannot repair, because the disk is full, looks damaged.
func withDisk(err error, dir string) error {
	if errors.As(err, new(syscall.Errno)) {
		return err
	}
	if full := tryDisk(dir, 0); full != nil {
		return fmt.Errorf("%w: %w", err, full)
	}
	return err
}

// database returns the path of etcd's database.
func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// checkDatabase says that an existing database is damaged before etcd finds it:
// it opens the file in a goroutine of its own and panics there.
func checkDatabase(dir string) error {
	info, err := os.Stat(database(dir))
	if err != nil || info.Size() == 0 {
		return nil // a new one is made
	}
	db, err := openDatabase(dir)
	if err != nil {
		return err
	}
	return db.Close()
}

// openDatabase opens the database to read it.
func openDatabase(dir string) (*bbolt.DB, error) {
	db, err := bbolt.Open(database(dir), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
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
	n, err := members(dir)
	if errors.Is(err, ErrInUse) {
		return "", err
	}
	if n > 1 {
		return "", fmt.Errorf("data directory %q: %w: %d", dir, ErrMembers, n)
	}
	before, _ := filepath.Glob(filepath.Join(dir, "damaged-*")) // the pattern is well-formed
	if len(before) >= maxAside {
		return "", fmt.Errorf("data directory %q: %w: %q", dir, ErrAsideBefore, before)
	}
	aside = filepath.Join(dir, "damaged-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(filepath.Join(dir, "member"), aside); err != nil {
		return "", fmt.Errorf("move damaged data aside: %w", err)
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
