package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memory is what a daemon with few peers may have before it gives back garbage, in bytes.
const memory = 32 << 20

// A daemon gives back what only its start needed afterStart after it is ready: first its peers come. It does so again after
// settled, when each part of it has looked around once.
const (
	afterStart = 2 * time.Second
	settled    = 5 * time.Second
)

// giveBackMemory gives back the memory that only the start needed, in a while: garbage, and pages of the program. Most of those
// are read once, when the packages of etcd and Kubernetes are initialized. A page that is needed again comes from the page cache.
func giveBackMemory(log *slog.Logger) {
	time.AfterFunc(settled, debug.FreeOSMemory)
	time.AfterFunc(afterStart, func() {
		debug.FreeOSMemory()
		if err := unmapProgram(); err != nil {
			log.Info("pages of the program that only the start needed stay in memory", "err", err)
		}
	})
}

// unmapProgram takes the pages of the program's file from this process. It leaves those that somebody has written to.
func unmapProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer smaps.Close()
	list, err := asInFile(smaps, exe)
	for _, m := range list {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 && err == nil {
			err = fmt.Errorf("madvise: %w", errno)
		}
	}
	return err
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// asInFile reads a list of mappings as /proc/<pid>/smaps has it (proc_pid_smaps(5)). It returns those of a file that cannot be written to
// and never were: a program that is linked as PIE writes addresses to some before it begins.
func asInFile(smaps io.Reader, file string) (list []mapping, err error) {
	var m mapping
	is := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end); err != nil {
				return nil, fmt.Errorf("smaps: %q: %w", lines.Text(), err)
			}
			is = (fields[1] == "r-xp" || fields[1] == "r--p") && strings.HasSuffix(lines.Text(), " "+file)
		case is && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			list = append(list, m)
		}
	}
	return list, lines.Err()
}
