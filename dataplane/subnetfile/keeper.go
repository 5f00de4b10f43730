package subnetfile

import (
	"io/fs"
	"os"
	"time"
)

// period is the period at which the subnet file is looked at.
const period = 250 * time.Millisecond

// Keeper keeps the subnet file as it was written last. To look costs one stat: only a file
// that is gone, or not the one that was written, is written again.
type Keeper struct {
	Path string // "": there is no file to keep
	file File
	seen fs.FileInfo // of the file when it was right; nil if it is not to be kept now

	Wrote func(modified time.Time) // may be nil
}

// Ticks returns a channel that says when to call Restore, nil if there is no file.
func (k *Keeper) Ticks() (<-chan time.Time, func()) {
	if k.Path == "" {
		return nil, func() {}
	}
	t := time.NewTicker(period)
	return t.C, t.Stop
}

// Write makes the file hold file, and keeps it from now on.
func (k *Keeper) Write(file File) error {
	if k.Path == "" {
		return nil
	}
	if err := Write(k.Path, file); err != nil {
		return err
	}
	seen, err := os.Stat(k.Path)
	if err != nil {
		return err
	}
	k.file, k.seen = file, seen
	if k.Wrote != nil {
		k.Wrote(seen.ModTime())
	}
	return nil
}

// Remove removes the file and does not keep it any more.
func (k *Keeper) Remove() error {
	if k.seen = nil; k.Path == "" {
		return nil
	}
	return Remove(k.Path)
}

// Restore writes the file again if somebody else removed or changed it, and reports whether it did.
func (k *Keeper) Restore() (restored bool, err error) {
	if k.seen == nil {
		return false, nil
	}
	now, err := os.Stat(k.Path)
	if err == nil && os.SameFile(now, k.seen) && now.ModTime().Equal(k.seen.ModTime()) && now.Size() == k.seen.Size() {
		return false, nil
	}
	if err := k.Write(k.file); err != nil {
		return false, err
	}
	return true, nil
}
