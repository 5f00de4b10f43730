package controller

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// maxNamed is how many peers a log line names. Of the rest it has the number.
const maxNamed = 20

// logFamilies names, in one line, the peers that have no family in common with this node: wholly, or
// for the subnets of one family.
func (f *follower) logFamilies(ctx context.Context, self control.Lease, report peerReport) {
	wholly, partly := nodesWithout(report.rejected), nodesWithout(report.limits)
	partly = slices.DeleteFunc(partly, func(a netip.Addr) bool { return slices.Contains(wholly, a) })
	if len(wholly) == 0 && len(partly) == 0 {
		return
	}
	has, lacks := "IPv4", "IPv6"
	if !self.VTEP(false).Addr.IsValid() {
		has, lacks = lacks, has
	}
	attrs := []any{"underlay", has}
	if len(wholly) > 0 {
		attrs = append(attrs, "unreachable", named(wholly))
	}
	if len(partly) > 0 {
		attrs = append(attrs, "no_"+strings.ToLower(lacks)+"_with", named(partly))
	}
	text := "peers have no underlay family in common with this node"
	due, _ := f.familyDue.Due(time.Now(), pace.Notice{Text: named(wholly) + " " + named(partly)})
	if len(due) > 0 {
		f.c.cfg.Log.WarnContext(ctx, text, append(attrs, "fix", "give this node an address of "+lacks+" on the underlay, or run overlayd there")...)
	}
}

// lacksFamily reports whether e is of a node that lacks a family in common with this one.
func (e *EntryStatus) lacksFamily() bool {
	return e.Reason == control.ReasonNoCommonFamily && e.Node.IsValid()
}

// nodesWithout returns the nodes of those entries that lack a common family, sorted.
func nodesWithout(entries []EntryStatus) (nodes []netip.Addr) {
	for i := range entries {
		if e := &entries[i]; e.lacksFamily() {
			nodes = append(nodes, e.Node)
		}
	}
	slices.SortFunc(nodes, netip.Addr.Compare)
	return slices.Compact(nodes)
}

// named lists addresses for a log line.
func named(nodes []netip.Addr) string {
	var text []string
	for _, a := range nodes[:min(len(nodes), maxNamed)] {
		text = append(text, a.String())
	}
	if len(nodes) > maxNamed {
		text = append(text, "…")
	}
	return strings.Join(text, " ")
}

// withoutFamilies returns entries without those that logFamilies names.
func withoutFamilies(entries []EntryStatus) (others []EntryStatus) {
	for i := range entries {
		if !entries[i].lacksFamily() {
			others = append(others, entries[i])
		}
	}
	return others
}
