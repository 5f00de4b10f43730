package node

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestDrainFromAnotherPIDNamespace: the daemon cannot be told there.
func TestDrainFromAnotherPIDNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	processtest.Run(t, asHolder, file)
	line, _ := processtest.Run(t, asDrainer, file, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	})
	if line != nodefile.ErrOtherPIDNamespace.Error() {
		t.Errorf("got %q", line)
	}
}
