package dataplane

import (
	"log/slog"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// warnings are those of one part that hold now. The zero value is ready.
type warnings struct {
	now     []Warning
	told    map[string]bool // by key: the log has its beginning, and is owed its end
	comings pace.Fights     // how often each has come and gone
	notices pace.Notices    // of those that come and go
}

func (w Warning) key() string { return w.ID + " " + w.Text }

// tell makes list what holds now, and publishes it. Then it logs each warning that is new, and each that was logged and is over: who has
// read a line finds the same in the status. A warning that keeps coming and going is logged once in ten minutes.
func (w *warnings) tell(log *slog.Logger, now time.Time, list []Warning, publish func([]Warning)) {
	if w.told == nil {
		w.told = map[string]bool{}
	}
	before := w.now
	w.now = slices.Clone(list)
	var added []Warning
	for i, n := range w.now {
		if at := slices.IndexFunc(before, func(b Warning) bool { return b.key() == n.key() }); at >= 0 {
			w.now[i].Since = before[at].Since
			continue
		}
		w.now[i].Since = now
		added = append(added, n)
	}
	publish(w.now)
	for _, n := range added {
		if w.isDue(now, n) {
			w.told[n.key()] = true
			log.Warn(n.Text, "id", n.ID, "fix", n.Fix)
		}
	}
	for _, b := range before {
		if w.told[b.key()] && !slices.ContainsFunc(w.now, func(n Warning) bool { return n.key() == b.key() }) {
			delete(w.told, b.key())
			log.Info("resolved: "+b.Text, "id", b.ID)
		}
	}
}

func (w *warnings) isDue(now time.Time, n Warning) bool {
	w.comings.Within = comingsWithin
	if !w.comings.Repaired(now, n.key()) {
		return true
	}
	due, _ := w.notices.Due(now, pace.Notice{Key: n.key()})
	return len(due) > 0
}
