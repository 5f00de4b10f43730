package node

import (
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/control"
)

// thisProcess tells this process from all others. What cannot be read is left out: nothing relies
// on it alone.
func thisProcess(version string) control.Process {
	p := control.Process{Nonce: newNodeID(), Start: time.Now(), Version: version}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		p.Boot = strings.TrimSpace(string(id))
	}
	if info, err := os.Stat("/proc/self/ns/net"); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			p.NetNS = st.Ino
		}
	}
	return p
}
