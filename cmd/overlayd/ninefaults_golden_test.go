package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// named waits until both commands say of a fault what the golden file has, with the right exit codes.
func (n *nineFaults) named(f seededFault, suffers *host) {
	n.t.Helper()
	path := filepath.Join("testdata", "ninefaults", n.mode, strings.NewReplacer(" ", "_", ",", "").Replace(f.name)+".txt")
	if *update {
		n.write(path, f, suffers)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, patience, f.name, func() error {
		got, err := n.said(f, suffers)
		if diff := cmp.Diff(string(want), got); diff != "" {
			return errors.New(diff)
		}
		return err
	})
}

// write makes what is said of a fault, once it stays so, the golden file.
func (n *nineFaults) write(path string, f seededFault, suffers *host) {
	n.t.Helper()
	var text string
	for same := 0; same < 8; same++ {
		time.Sleep(500 * time.Millisecond)
		now, err := n.said(f, suffers)
		if err != nil {
			n.t.Fatal(err)
		}
		if now != text {
			text, same = now, 0
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		n.t.Fatal(err)
	}
}

// said is what status says on the host that suffers, and doctor on the guilty one. It is an error if an exit code does not fit.
func (n *nineFaults) said(f seededFault, suffers *host) (text string, err error) {
	code, all := n.run(suffers, "status")
	verdict, _, _ := strings.Cut(all, "\n")
	text = "$ overlayd status\n" + verdict + "\n"
	if f.healed {
		text += regexp.MustCompile(`(?m)^repairs .*\n`).FindString(all)
	}
	if _, warnings, ok := strings.Cut(all, "\nwarnings\n"); ok {
		text += "warnings\n" + warnings
	}
	if degraded := strings.HasPrefix(verdict, "degraded: "); degraded != (code == exitFailure) {
		err = fmt.Errorf("status has exit code %d:\n%s", code, all)
	}
	if !f.healed {
		guilty := n.guilty
		if f.seen {
			guilty = suffers
		}
		code, all := n.run(guilty, "doctor")
		found := namedBy(all)
		text += "$ overlayd doctor\n" + found
		if failed := strings.Contains("\n"+found, "\nfail "); failed != (code == exitFailure) {
			err = errors.Join(err, fmt.Errorf("doctor has exit code %d:\n%s", code, all))
		}
	}
	return n.normal(text), err
}

// namedBy returns what doctor has found, but for what depends on the machine.
func namedBy(doctor string) string {
	var b strings.Builder
	keep := false
	for line := range strings.Lines(doctor) {
		if !strings.HasPrefix(line, " ") {
			check := strings.Fields(line)
			keep = (check[0] == "fail" || check[0] == "warn") && check[1] != "clock"
		}
		if keep {
			b.WriteString(line)
		}
	}
	return b.String()
}

var (
	duration = regexp.MustCompile(`\b(for|last) (\d+(ms|s|m|h))+`)
	covering = regexp.MustCompile(`10\.5\.\d+\.0([-/]25)`)
)

// normal gives names to what is another each time.
func (n *nineFaults) normal(text string) string {
	name, _ := os.Hostname()
	text = strings.NewReplacer(n.suffers.gateway().Masked().String(), "SUBNET-A", n.subnet, "SUBNET-B", filepath.Dir(n.guilty.subnetFile), "DIR",
		filepath.Dir(n.suffers.subnetFile), "DIR", " "+name+" ", " NODE ").Replace(" " + text)[1:]
	text = covering.ReplaceAllString(text, "SUBNET-C$1")
	return duration.ReplaceAllString(text, "$1 TIME")
}
