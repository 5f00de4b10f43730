package controller

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// The leases file has all leases that may be used as this node saw them last. If the store has lost its data when a daemon
// starts, the daemon knows from the file what there was, and keeps it until the nodes register again: see
// control.RIB.Apply. The first line names the networks. The second one has the lengths that subnets have had (control.Lengths);
// older versions skip it. So they do with the lines that tell what was in use (control.Incumbents): one with the MACs of this node, and one for
// each peer. The others are a line for each lease: revision, key, value and facts.

// LeasesFile returns the path of the leases file that belongs to a subnet file.
func LeasesFile(subnetFile string) string { return subnetFile + ".leases" }

const (
	leasesSettle  = time.Second            // from a change to the next write of the file
	leasesDelay   = 10 * time.Second       // and from the last write, at least
	leasesAgain   = 2 * time.Second        // from a write that failed to the next
	leaseDelay    = time.Millisecond       // and this for each lease
	maxLeaseLine  = 128 << 10              // longer ones end the reading
	maxLeases     = 1 << 20                // more are not read
	maxLeasesFile = 1 << 30                // nor is more of the file, in bytes
	leasesHead    = "overlayd leases 1 %s" // and the networks
	lengthsHead   = "lengths "
	usedHead      = "used "
)

// recall gives the RIB the leases of the file, and returns the lengths in it. Without a file, or with one of another network, it
// knows none. A lease of this node itself that is not of the last run was given back: the store has not lost it.
func (f *follower) recall() (lengths control.Lengths) {
	if f.c.cfg.SubnetFile == "" {
		return lengths
	}
	file, err := hostfile.Open(f.leasesPath())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // as it is at the first start
			f.c.cfg.Log.Warn("leases file not read: beside a store that has lost its data the peers are dropped", "err", err)
		}
		return lengths
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxLeasesFile))
	lines.Buffer(nil, maxLeaseLine)
	if !lines.Scan() || lines.Text() != f.leasesHead() {
		return lengths
	}
	node := &f.c.cfg.Node
	self := control.Lease{PublicIP: node.PublicIP, PublicIPv6: node.PublicIPv6}
	var leases []control.Lease
	var used control.Incumbents
	for lines.Scan() && len(leases) < maxLeases {
		if text, ok := strings.CutPrefix(lines.Text(), lengthsHead); ok {
			lengths.AddAll(control.ParseLengths(text))
		} else if text, ok := strings.CutPrefix(lines.Text(), usedHead); ok {
			used.Parse(text)
		} else if l, ok := parseLeaseLine(lines.Text()); ok && (!l.SamePublicIP(self) || node.HadSubnets(l)) {
			leases = append(leases, l)
		}
	}
	f.rib.Apply(control.Update{Reset: true, Leases: leases})
	f.rib.SetIncumbents(used)
	return lengths
}

// noteLengths adds what is known of the lengths of earlier configs to what Config has, for the RIB and for Store.Acquire.
func (f *follower) noteLengths(recalled control.Lengths) {
	node := &f.c.cfg.Node
	if node.Lengths == nil {
		return
	}
	recalled.AddAll(*node.Lengths)
	recalled.Add(node.Previous...)
	node.Lengths, f.rib.Lengths = &recalled, &recalled
}

func (f *follower) leasesPath() string { return LeasesFile(f.c.cfg.SubnetFile) }

func (f *follower) leasesHead() string { return fmt.Sprintf(leasesHead, f.c.cfg.Network.Prefixes()) }

// parseLeaseLine reads a line of the file; ok is false if the line is not a lease, such as a line that was cut off.
func parseLeaseLine(line string) (l control.Lease, ok bool) {
	fields := strings.Split(line, "\t")
	if len(fields) != 4 {
		return l, false
	}
	created, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return l, false
	}
	if l, err = control.ParseLease(fields[1], []byte(fields[2])); err != nil {
		return l, false
	}
	l.CreateRevision = created
	l.Facts, err = control.ParseNodeFacts([]byte(fields[3]))
	return l, err == nil
}

// noteLeases plans a write of the file after a change.
func (f *follower) noteLeases() {
	if f.leasesAt.IsZero() && f.c.cfg.SubnetFile != "" {
		leases, _ := f.rib.Len()
		f.leasesAt = time.Now().Add(leasesSettle)
		if next := f.leasesWritten.Add(leasesDelay + time.Duration(leases)*leaseDelay); next.After(f.leasesAt) {
			f.leasesAt = next
		}
	}
}

// writeLeases writes the file, if the RIB is complete.
func (f *follower) writeLeases(ctx context.Context) {
	if f.leasesAt = (time.Time{}); !f.whole {
		return
	}
	f.leasesWritten = time.Now()
	leases := slices.SortedFunc(f.rib.Leases(), func(a, b control.Lease) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	write := func(w *bufio.Writer) {
		fmt.Fprintln(w, f.leasesHead())
		if f.rib.Lengths != nil {
			lengths := *f.rib.Lengths
			lengths.AddNetwork(f.c.cfg.Network)
			fmt.Fprintln(w, lengthsHead+lengths.String())
		}
		for line := range f.rib.Incumbents().Lines() {
			fmt.Fprintln(w, usedHead+line)
		}
		for _, l := range leases {
			if l.Claimant != "" {
				continue // whoever else has the subnets is there
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", l.CreateRevision, l.Key(), l.Value(), l.Facts.JSON())
		}
	}
	err := replaceFile(f.leasesPath(), write)
	f.noteFile(err, func(s *Status) *Fault { return &s.LeasesFileFault })
	if err != nil {
		due, _ := f.leasesDue.Due(time.Now(), pace.Notice{Text: printable(err.Error())})
		for _, n := range due {
			f.c.cfg.Log.WarnContext(ctx, "leases file not written: trying again. Until then a restart beside a store that has lost its data drops the peers", "err", n.Text)
		}
		f.leasesAt = time.Now().Add(leasesAgain + time.Duration(len(leases))*leaseDelay)
	}
}

// replaceFile makes path hold what write writes: a reader sees the old file or the new one. What a power cut leaves of it does not
// matter: the dataplane is gone then too.
func replaceFile(path string, write func(*bufio.Writer)) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // of mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, hostfile.Cause(err)) // without the random name
	}
	w := bufio.NewWriterSize(tmp, 64<<10)
	write(w)
	if err = errors.Join(w.Flush(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name()) // best effort: the error to report is the first one
		return fmt.Errorf("write %s: %w", path, hostfile.Cause(err))
	}
	return nil
}
