package control

import (
	"io/fs"
	"os"
	"time"
)

// fileCheck is the period at which the subnet file is looked at.
const fileCheck = 2 * time.Second

// fileKeeper keeps the subnet file as it was written last. To look costs one stat: only a file
// that is gone, or not the one that was written, is written again.
type fileKeeper struct {
	path string // "": there is no file to keep
	file SubnetFile
	seen fs.FileInfo // of the file when it was right; nil if it is not to be kept now

	wrote func(modified time.Time) // may be nil
}

// ticks returns a channel that says when to call restore, nil if there is no file.
func (k *fileKeeper) ticks() (<-chan time.Time, func()) {
	if k.path == "" {
		return nil, func() {}
	}
	t := time.NewTicker(fileCheck)
	return t.C, t.Stop
}

// write makes the file hold file, and keeps it from now on.
func (k *fileKeeper) write(file SubnetFile) error {
	if k.path == "" {
		return nil
	}
	if err := WriteSubnetFile(k.path, file); err != nil {
		return err
	}
	seen, err := os.Stat(k.path)
	if err != nil {
		return err
	}
	k.file, k.seen = file, seen
	if k.wrote != nil {
		k.wrote(seen.ModTime())
	}
	return nil
}

// remove removes the file and does not keep it any more.
func (k *fileKeeper) remove() error {
	if k.seen = nil; k.path == "" {
		return nil
	}
	return RemoveSubnetFile(k.path)
}

// restore writes the file again if somebody else removed or changed it, and reports whether it did.
func (k *fileKeeper) restore() (restored bool, err error) {
	if k.seen == nil {
		return false, nil
	}
	now, err := os.Stat(k.path)
	if err == nil && os.SameFile(now, k.seen) && now.ModTime().Equal(k.seen.ModTime()) && now.Size() == k.seen.Size() {
		return false, nil
	}
	if err := k.write(k.file); err != nil {
		return false, err
	}
	return true, nil
}
