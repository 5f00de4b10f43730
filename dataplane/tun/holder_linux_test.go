package tun

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestHolder: another process that has a queue of the device is named, and this one is not.
func TestHolder(t *testing.T) {
	ns := netnstest.New(t)
	ns.Must(func() error {
		fd, err := Attach("zz0", Mode{})
		if err != nil {
			return err
		}
		queue := os.NewFile(uintptr(fd), "zz0")
		defer queue.Close()
		if got := Holder("zz0"); got != "" {
			t.Errorf("this process alone: %s", got)
		}
		other := exec.Command("sleep", "60")
		other.ExtraFiles = []*os.File{queue}
		if err := ns.Start(other); err != nil {
			return err
		}
		defer func() {
			other.Process.Kill()
			other.Wait()
		}()
		if got, want := Holder("zz0"), fmt.Sprintf("%q (pid %d)", "sleep", other.Process.Pid); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		return nil
	})
}
