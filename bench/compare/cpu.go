package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// userHZ is the unit of the times in /proc: fixed by the kernel's ABI on all
// architectures that Go runs on.
const userHZ = 100

// cpuTimes are CPU seconds since some start.
type cpuTimes struct {
	processes float64 // of the two hosts' processes: traffic and daemons
	machine   float64 // of the whole machine, all but idle and stolen: softirqs, too
}

func (t cpuTimes) sub(u cpuTimes) cpuTimes {
	return cpuTimes{t.processes - u.processes, t.machine - u.machine}
}

// readCPU sums the processes below roots, and the machine.
func readCPU(roots ...int) (t cpuTimes, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	if t.machine, err = parseMachine(string(text)); err != nil {
		return t, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return t, err
	}
	procs := make(map[int]procStat, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		p, err := parseProc(string(text))
		if err != nil {
			return t, fmt.Errorf("%s: %w", file, err)
		}
		procs[p.pid] = p
	}
	t.processes = sumBelow(procs, roots)
	return t, nil
}

// procStat is what one process used.
type procStat struct {
	pid, parent int
	seconds     float64
}

// parseProc reads /proc/<pid>/stat (proc(5)): utime is field 14, stime field 15.
func parseProc(text string) (p procStat, err error) {
	// The second field, a name in brackets, may contain anything.
	open, shut := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return p, errors.New("no name in brackets")
	}
	fields := strings.Fields(text[shut+1:]) // from field 3 on
	if len(fields) < 13 {
		return p, fmt.Errorf("%d fields after the name, want 13 or more", len(fields))
	}
	pid, err1 := strconv.Atoi(strings.TrimSpace(text[:open]))
	parent, err2 := strconv.Atoi(fields[1])
	user, err3 := strconv.ParseUint(fields[11], 10, 64)
	system, err4 := strconv.ParseUint(fields[12], 10, 64)
	return procStat{pid, parent, float64(user+system) / userHZ}, errors.Join(err1, err2, err3, err4)
}

// sumBelow sums the roots and all their descendants.
func sumBelow(procs map[int]procStat, roots []int) (seconds float64) {
	children := make(map[int][]int)
	for _, p := range procs {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	for todo := append([]int(nil), roots...); len(todo) > 0; {
		pid := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], children[pid]...)
		seconds += procs[pid].seconds
	}
	return seconds
}

// parseMachine reads the first line of /proc/stat: user, nice, system, idle,
// iowait, irq, softirq, steal, and guest times that user and nice contain.
func parseMachine(text string) (seconds float64, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat starts with %q", line)
	}
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		seconds += float64(n) / userHZ
	}
	return seconds, nil
}
