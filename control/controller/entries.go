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

// badEntries returns what cannot be read, by key.
func (f *follower) badEntries() []EntryStatus {
	now := time.Now()
	bad := f.rib.Bad()
	entries := make([]EntryStatus, 0, len(bad))
	for _, b := range bad {
		e := EntryStatus{Key: printable(b.Key), Name: b.Name, Fault: Fault{Reason: control.Reason(b.Err), Err: printable(b.Err.Error()), Since: now}}
		entries = append(entries, f.withFix(e, b.Key, b.Err))
	}
	slices.SortFunc(entries, func(a, b EntryStatus) int { return strings.Compare(a.Key, b.Key) })
	return entries
}

// rejectedLogged is how often unchanged refused leases are checked, because a lasting fault is logged again and again.
const rejectedLogged = time.Minute

// rejectedEntries returns entriesOf for the leases that are not used. news reports whether some of them may have to be logged. An
// attacker can cause many refused leases. While they do not change, this function costs nothing.
func (f *follower) rejectedEntries(rejected []control.Rejection, now time.Time) (entries []EntryStatus, news bool) {
	same := len(rejected) == len(f.rejections) && (len(rejected) == 0 || &rejected[0] == &f.rejections[0])
	if !same {
		f.rejections = rejected
		f.rejected = entriesOf(f.rejected, rejected)
		for i, r := range rejected {
			f.rejected[i] = f.withFix(f.rejected[i], r.Key, r.Err)
		}
	}
	if news = !same || now.Sub(f.rejectedAt) >= rejectedLogged; news {
		f.rejectedAt = now
	}
	return f.rejected, news
}

// withFix returns e, which has this key in the store and is not used because of err, with what to do about it.
func (f *follower) withFix(e EntryStatus, key string, err error) EntryStatus {
	wrong := control.EntryError{Name: e.Name, Err: err}
	if _, _, unread := control.ParseKey(key); unread == nil {
		wrong.Key = key
	}
	e.Fix = f.c.cfg.Fix(&wrong)
	return e
}

// entriesOf returns the entries of the RIB, which are sorted by key, with the times of the earlier entries.
func entriesOf(before []EntryStatus, rejected []control.Rejection) []EntryStatus {
	now := time.Now()
	entries := make([]EntryStatus, 0, len(rejected))
	for _, r := range rejected {
		fault := Fault{Reason: control.Reason(r.Err), Err: printable(r.Err.Error()), Since: now}
		entries = append(entries, EntryStatus{Key: printable(r.Key), Subnet: r.Subnet, Node: r.Node, Name: r.Name, Fault: fault})
	}
	return entryStatuses(before, entries)
}

// entryStatuses returns next, which is sorted by key. An entry that was refused before for the same reason keeps
// its Since.
func entryStatuses(before, next []EntryStatus) []EntryStatus {
	for i := range next {
		n := &next[i]
		at, found := slices.BinarySearchFunc(before, *n, func(a, b EntryStatus) int { return strings.Compare(a.Key, b.Key) })
		for ; found && at < len(before) && before[at].Key == n.Key; at++ {
			if before[at].Subnet == n.Subnet && before[at].Reason == n.Reason {
				n.Since = before[at].Since
				break
			}
		}
	}
	return next
}

// logBad logs the entries of the present Status that cannot be read.
func (f *follower) logBad(ctx context.Context) {
	f.logEntries(ctx, &f.badDue, f.c.Status().Bad, "entry ignored: not a lease")
}

// logEntries logs those of entries that are due, by their subnets or else by their keys.
func (f *follower) logEntries(ctx context.Context, notices *pace.Notices, entries []EntryStatus, text string) {
	current, of := make([]pace.Notice, 0, len(entries)), make(map[pace.Notice]*EntryStatus, len(entries))
	for i := range entries {
		e := &entries[i]
		n := pace.Notice{Key: control.CIDRsOf(e.Key), Text: e.Err}
		if e.Subnet.IsValid() {
			n.Key = e.Subnet.String()
		}
		current, of[n] = append(current, n), e
	}
	due, more := notices.Due(time.Now(), current...)
	for _, n := range due {
		field := "subnet"
		if first, _, _ := strings.Cut(n.Key, ","); !isPrefix(first) {
			field = "key"
		}
		f.c.cfg.Log.WarnContext(ctx, text, of[n].attrs(field, n.Key)...)
	}
	what, _, _ := strings.Cut(text, ":")
	f.logMore(ctx, what, more)
}

// attrs are the attributes of a log line about e: about says what is its subject.
func (e *EntryStatus) attrs(about ...any) []any {
	if e.Name != "" {
		about = append(about, "node", e.Name)
	}
	about = append(about, "err", e.Err)
	if e.Fix != "" {
		about = append(about, "fix", e.Fix)
	}
	return about
}

// logContest says that an older lease has the subnet of this node, and that this is over. No other lines count against its bound.
func (f *follower) logContest(ctx context.Context, entries []EntryStatus) {
	contested := false
	for i := range entries {
		e := &entries[i]
		if e.Reason != control.ReasonContested {
			continue
		}
		contested = true
		due, _ := f.contestDue.Due(time.Now(), pace.Notice{Key: e.Key, Text: e.Err})
		for range due {
			f.c.cfg.Log.ErrorContext(ctx, "an older lease has the subnet of this node: pods here cannot be reached", e.attrs("subnet", e.Subnet)...)
		}
	}
	if f.contested && !contested {
		f.c.cfg.Log.InfoContext(ctx, "no older lease has the subnet of this node any more")
	}
	f.contested = contested
}

// heldLines are notices and what they are about.
type heldLines struct {
	*pace.Notices
	what string
}

// heldBack returns the notices of the lines that a store can cause.
func (f *follower) heldBack() [4]heldLines {
	return [...]heldLines{{&f.badDue, "entry ignored"}, {&f.rejectedDue, "lease not used"},
		{&f.limitDue, "source of a peer's packets not accepted"}, {&f.syncDue, "sync"}}
}

// tellMore logs how many lines were held back, if that is due.
func (f *follower) tellMore(ctx context.Context, now time.Time) {
	for _, h := range f.heldBack() {
		if at := h.Next(); !at.IsZero() && !now.Before(at) {
			_, more := h.Due(now)
			f.logMore(ctx, h.what, more)
		}
	}
}

func isPrefix(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

func (f *follower) logMore(ctx context.Context, what string, more int) {
	if more > 0 {
		f.c.cfg.Log.WarnContext(ctx, what+": and more", "count", more)
	}
}
