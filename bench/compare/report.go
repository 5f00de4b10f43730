package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is everything that a run found; -o writes it as JSON.
type report struct {
	Command   string            `json:"command"`
	Start     time.Time         `json:"start"`
	Seconds   float64           `json:"seconds"`
	Machine   machine           `json:"machine"`
	Rounds    int               `json:"rounds"`
	Reference string            `json:"reference"` // the row that the ratios refer to
	Programs  []*program        `json:"programs"`
	Metrics   map[string]string `json:"metrics"` // what each key means
	Underlays []underlayReport  `json:"underlays"`
	Checks    []check           `json:"checks,omitempty"`
	Memory    []memoryReport    `json:"memory,omitempty"`
}

// machine describes the machine and its load.
type machine struct {
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	LoadStart string `json:"load_start"` // /proc/loadavg
	LoadEnd   string `json:"load_end"`
}

// underlayReport is the rows measured on one underlay.
type underlayReport struct {
	Name     string      `json:"name"`
	Features string      `json:"features,omitempty"` // given to ethtool -K
	Rows     []rowReport `json:"rows"`
}

// rowReport is one row over all rounds.
type rowReport struct {
	Name    string             `json:"name"`
	Metrics map[string]summary `json:"metrics"`
	Errors  []string           `json:"errors,omitempty"`
}

// newRowReport summarises the figures of a row's rounds.
func newRowReport(name string, rounds []figures, errs []string) rowReport {
	values := make(map[string][]float64)
	for _, f := range rounds {
		for key, v := range f {
			values[key] = append(values[key], v)
		}
	}
	r := rowReport{Name: name, Metrics: make(map[string]summary), Errors: errs}
	for key, v := range values {
		if s, ok := summarise(v); ok {
			r.Metrics[key] = s
		}
	}
	return r
}

// addRatios relates every row to the reference.
func (u *underlayReport) addRatios(reference string) {
	for _, ref := range u.Rows {
		if ref.Name != reference {
			continue
		}
		for _, r := range u.Rows {
			for key, s := range r.Metrics {
				if base := ref.Metrics[key].Median; base > 0 {
					s.Ratio = s.Median / base
					r.Metrics[key] = s
				}
			}
		}
	}
}

func (r *report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func readMachine() machine {
	m := machine{CPU: "unknown", CPUs: runtime.NumCPU(), Kernel: kernelVersion(), Go: runtime.Version(), LoadStart: loadAverage()}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

func kernelVersion() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
