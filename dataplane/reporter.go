package dataplane

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// repairLines is how many repairs of one look are logged one by one. Of the rest only the
// number is logged.
const repairLines = 5

// Reporter keeps the PartStatus of one part and logs its repairs. Its methods may be called
// from several goroutines.
type Reporter struct {
	log    *slog.Logger
	status atomic.Pointer[PartStatus]

	mu      sync.Mutex // held by who publishes, never for long
	notices pace.Notices
	repairs map[string]repairCount // by kind
}

type repairCount struct {
	n    uint64
	last time.Time
}

// NewReporter returns the Reporter of a part of that name, whose state is ok.
func NewReporter(log *slog.Logger, name string) *Reporter {
	r := &Reporter{log: log, repairs: map[string]repairCount{}}
	r.status.Store(&PartStatus{Name: name, State: StateOK, Since: time.Now()})
	return r
}

// Status returns the last published status. It waits for nothing.
func (r *Reporter) Status() PartStatus { return *r.status.Load() }

// StateOf returns the state of a part whose Sync returned err: degraded if only single peers
// failed.
func StateOf(err error) State {
	switch _, rest := PeerErrors(err); {
	case err == nil:
		return StateOK
	case rest == nil:
		return StateDegraded
	}
	return StateFailed
}

// Publish makes a result the part's status. err is why state is not ok. objects are the
// counts per kind, whose repairs are filled in; without any, those of before stay.
func (r *Reporter) Publish(state State, err error, objects ...ObjectStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status.Load()
	s := &PartStatus{Name: before.Name, State: state, Err: reason(err), Since: before.Since, Objects: r.counted(objects, before.Objects)}
	if s.State != before.State || s.Err != before.Err {
		s.Since = time.Now()
	}
	r.status.Store(s)
}

// reason is the text of a status: of many peers' errors the first and the number.
func reason(err error) string {
	if err == nil {
		return ""
	}
	if peers, rest := PeerErrors(err); rest == nil && len(peers) > 1 {
		return fmt.Sprintf("%v; and %d more", peers[0], len(peers)-1)
	}
	return err.Error()
}

// counted returns objects, or before if there are none, with the repairs so far. It holds mu.
func (r *Reporter) counted(objects, before []ObjectStatus) []ObjectStatus {
	if len(objects) == 0 {
		objects = before
	}
	objects = slices.Clone(objects)
	for i := range objects {
		c := r.repairs[objects[i].Kind]
		objects[i].Repairs, objects[i].LastRepair = c.n, c.last
	}
	return objects
}

// Repaired counts and logs changes that put right what others had changed. The repair of
// one object is logged once in ten minutes, and of many at once the first few and the number.
func (r *Reporter) Repaired(changes ...Change) {
	if len(changes) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	byNotice := make(map[pace.Notice]Change, repairLines)
	notices := make([]pace.Notice, 0, repairLines)
	for i, c := range changes {
		n := r.repairs[c.Kind].n + 1
		r.repairs[c.Kind] = repairCount{n, now}
		if i < repairLines {
			notice := pace.Notice{Key: c.Kind + " " + c.Key, Text: string(c.Op)}
			byNotice[notice] = c
			notices = append(notices, notice)
		}
	}
	due, _ := r.notices.Due(now, notices...)
	for _, n := range due {
		r.log.Warn("repaired what others had changed", "part", r.Status().Name, "change", byNotice[n])
	}
	if more := len(changes) - repairLines; more > 0 {
		r.log.Warn("repaired more objects that others had changed", "part", r.Status().Name, "more", more, "kinds", r.kinds(changes))
	}
	s := *r.status.Load()
	s.Objects = r.counted(s.Objects, s.Objects)
	r.status.Store(&s)
}

func (r *Reporter) kinds(changes []Change) []string {
	seen := map[string]bool{}
	for _, c := range changes {
		seen[c.Kind] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
