package tun

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestOpenFileWaits: the queue that made the device may be open for a moment longer, in a child that this process has just forked.
func TestOpenFileWaits(t *testing.T) {
	ns := netnstest.New(t)
	ns.Must(func() error {
		fd, err := Attach("zz0", Mode{})
		if err != nil {
			return err
		}
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
			return err
		}
		queue := os.NewFile(uintptr(fd), "zz0")
		time.AfterFunc(50*time.Millisecond, func() { queue.Close() })
		f, err := OpenFile("zz0", false)
		if err != nil {
			return err
		}
		return f.Close()
	})
}
