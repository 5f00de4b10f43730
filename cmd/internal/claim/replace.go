package claim

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Replace gives the file of a claim other content. f is the open file, and path its name. Whoever reads the
// file finds the old content or the new, also after a crash or on a full disk, and the claim holds throughout.
// Replace returns the new file and closes f. After an error f is still the claim, with the old content.
func Replace(f *os.File, path string, content []byte) (*os.File, error) {
	temporary := path + ".tmp"
	next, err := hostfile.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err = lock(next); err == nil { // before it has the name: nobody else ever gets it
		_, err = next.Write(content)
	}
	if err = errors.Join(err, next.Sync()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		os.Remove(temporary)
		next.Close()
		return nil, err
	}
	f.Close()
	return next, nil
}
