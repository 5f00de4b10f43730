package tun

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Holder returns which other process of this network namespace has a queue of a TUN device open, as in `qemu (pid 12)`. It is empty if this
// process sees none: it sees those of other users with CAP_SYS_PTRACE only, and none of another pid namespace.
func Holder(name string) string {
	own, _ := os.Readlink("/proc/thread-self/ns/net") // without /proc nobody is found
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, path := range infos {
		process := filepath.Dir(filepath.Dir(path))
		if process == self {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte("\niff:\t"+name+"\n")) {
			continue
		}
		ns, err := os.Readlink(filepath.Join(process, "ns/net"))
		program, cerr := os.ReadFile(filepath.Join(process, "comm"))
		if err == nil && cerr == nil && ns == own {
			return fmt.Sprintf("%q (pid %s)", strings.TrimSpace(string(program)), filepath.Base(process))
		}
	}
	return ""
}
