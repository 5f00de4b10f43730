package leftovers

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	besidePeriod = 5 * time.Second // between two looks whether a flanneld that was found still runs
	besideRest   = time.Second     // the least between two looks
)

// Beside warns of a flanneld that runs beside this daemon for the same network, from when it is found until it has ended. It
// looks when it begins, and after a hint: to look costs a read of each process of the host. Its methods may be called from several
// goroutines, whose threads are in one network namespace.
type Beside struct {
	file   string
	report *dataplane.Reporter
	hints  chan struct{}
}

// NewBeside returns the Beside of a daemon with a subnet file.
func NewBeside(log *slog.Logger, subnetFile string) *Beside {
	return &Beside{subnetFile, dataplane.NewReporter(log, "beside"), make(chan struct{}, 1)}
}

// Hint says that somebody else has written the subnet file, or deleted the device. It waits for nothing.
func (b *Beside) Hint() {
	select {
	case b.hints <- struct{}{}:
	default: // one is enough
	}
}

// Warnings returns what is so now. It waits for nothing.
func (b *Beside) Warnings() []dataplane.Warning { return b.report.Status().Warnings }

// Run looks until ctx ends. subnets are this node's own, as far as they are known.
func (b *Beside) Run(ctx context.Context, subnets func() []netip.Prefix) {
	hinted := len(b.hints) > 0 // of the session before
	for {
		found, err := FindBeside(b.file, subnets(), hinted)
		if err == nil { // else it stays as it was
			b.report.Warn(found...)
		}
		var again <-chan time.Time
		if len(b.Warnings()) > 0 {
			again = time.After(besidePeriod)
		} else {
			hinted = false
		}
		if !pace.Sleep(ctx, besideRest, nil) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			continue
		case <-b.hints:
			hinted = true
		}
	}
}

// FindBeside returns a warning for each flanneld that runs in the network namespace of the calling thread and has this
// subnet file or one of the subnets. hinted: see [Beside.Hint]. Only then a process counts whose subnet file
// cannot be told for sure: it may serve another network.
func FindBeside(subnetFile string, subnets []netip.Prefix, hinted bool) (warnings []dataplane.Warning, err error) {
	found, err := findFlannelds("/proc")
	for _, f := range found {
		ours := func(s netip.Prefix) bool { return slices.Contains(subnets, s.Masked()) }
		if f.isUnsure && !hinted || !f.has(subnetFile) && !slices.ContainsFunc(f.subnets, ours) {
			continue
		}
		warnings = append(warnings, dataplane.Warning{ID: dataplane.WarnFlanneld,
			Text: fmt.Sprintf("flanneld (process %d) runs for the same network: each of both undoes what the other one does", f.pid),
			Fix:  "end it: systemctl disable --now flanneld; in Kubernetes delete its pod, and keep it off this Node, as docs/from-flannel.md has it"})
	}
	return warnings, err
}

// isSameFile reports whether two paths lead to one file: a flanneld in a container may have another one by that name.
func isSameFile(a, b string) bool {
	stats := [2]fs.FileInfo{}
	for i, path := range []string{a, b} {
		var err error
		if stats[i], err = os.Stat(path); err != nil {
			return false
		}
	}
	return os.SameFile(stats[0], stats[1])
}
