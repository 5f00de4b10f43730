package handover

import (
	"os"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
)

// ThisProcess tells this process from all others. What cannot be read is left out: nothing relies
// on it alone.
func ThisProcess(version string) control.Process {
	p := control.Process{Nonce: nodefile.NewID(), Start: time.Now(), Version: version}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		p.Boot = strings.TrimSpace(string(id))
	}
	p.NetNS, _ = claim.NetNSOf("/proc/self/ns/net")
	return p
}
