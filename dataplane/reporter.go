package dataplane

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
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
	status atomic.Pointer[reported]

	mu      sync.Mutex // held by whoever publishes, never for long
	fights  pace.Fights
	holds   pace.Holds
	repairs map[string]repairCount // by kind
	given   []Warning              // by Warn
	fought  []fight                // now, the first that began first
	warned  warnings
}

// fight is about an object whose repair somebody keeps undoing.
type fight struct {
	Warning
	last time.Time // when it was repaired last
}

const fixFought = "find the writer, and end it: ip monitor and nft monitor show changes; for a sysctl look at the network manager and /etc/sysctl.d"

// fightCalm is the least for Reporter.calm.
const fightCalm = 10 * time.Second

// reported is an immutable value.
type reported struct {
	PartStatus
	lately map[string]lately // repairs, by kind
}

type repairCount struct {
	n      uint64
	last   time.Time
	lately lately
}

// NewReporter returns the Reporter of a part of that name, whose state is ok.
func NewReporter(log *slog.Logger, name string) *Reporter {
	r := &Reporter{log: log, repairs: map[string]repairCount{}}
	r.status.Store(&reported{PartStatus: PartStatus{Name: name, State: StateOK, Since: time.Now()}})
	return r
}

// Polls says that the part notices what others change by looking at that interval, and not by notifications: whoever
// undoes the repair of every look is then taken for somebody who keeps undoing it. It is called before Repaired.
func (r *Reporter) Polls(every time.Duration) { r.fights.Within = every + 2*time.Second }

// Status returns the last published status. It waits for nothing.
func (r *Reporter) Status() PartStatus {
	s := r.status.Load()
	if len(s.lately) == 0 {
		return s.PartStatus
	}
	st, now := s.PartStatus, time.Now()
	st.Objects = slices.Clone(st.Objects)
	for i := range st.Objects {
		st.Objects[i].Lately = s.lately[st.Objects[i].Kind].sum(now)
	}
	return st
}

// store makes s the status, with the repairs so far. The caller holds mu.
func (r *Reporter) store(s PartStatus) {
	next := &reported{PartStatus: s}
	next.Objects = slices.Clone(s.Objects)
	for i := range next.Objects {
		o := &next.Objects[i]
		c := r.repairs[o.Kind]
		o.Repairs, o.LastRepair = c.n, c.last
	}
	if len(r.repairs) > 0 {
		next.lately = map[string]lately{}
	}
	for kind, c := range r.repairs {
		next.lately[kind] = c.lately
	}
	r.status.Store(next)
}

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

// Publish sets the part's status. err is why state is not ok. objects are the counts per
// kind; Publish fills in their repairs. Without objects the earlier counts stay.
func (r *Reporter) Publish(state State, err error, objects ...ObjectStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status.Load()
	if len(objects) == 0 {
		objects = before.Objects
	}
	s := PartStatus{Name: before.Name, State: state, Err: reason(err), Cause: err, Since: before.Since,
		Objects: objects, Warnings: before.Warnings, Peers: peerFaults(err, before.Peers, time.Now())}
	if s.State != before.State || s.Err != before.Err {
		s.Since = time.Now()
	}
	r.store(s)
}

// Warn makes list the warnings of the part's status, and logs those that are new and those that are over. Since is set
// here.
func (r *Reporter) Warn(list ...Warning) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = slices.Clone(list)
	r.tell(time.Now())
}

// tell publishes and logs the warnings, and those of fights. The caller holds mu.
func (r *Reporter) tell(now time.Time) {
	list := slices.Clone(r.given)
	for _, f := range r.fought {
		list = append(list, f.Warning)
	}
	r.warned.tell(r.log, now, list, func(all []Warning) {
		s := r.status.Load().PartStatus
		s.Warnings = all
		r.store(s)
	})
}

// peerFaults returns the peers that err is about. Since stays while the error of a peer does.
func peerFaults(err error, before []PeerFault, now time.Time) (faults []PeerFault) {
	peers, _ := PeerErrors(err)
	since := make(map[string]time.Time, len(before))
	for _, f := range before {
		since[f.Error()] = f.Since
	}
	for _, p := range peers {
		f := PeerFault{p, now}
		if at, ok := since[p.Error()]; ok {
			f.Since = at
		}
		faults = append(faults, f)
	}
	return faults
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

// Repaired counts and logs changes that put right what others had changed: each of the first few of one
// look, and of the others the number. If somebody keeps undoing one of them, that is a warning instead for as long
// as it lasts, and the next repair of the same object is Held.
func (r *Reporter) Repaired(changes ...Change) {
	if len(changes) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, fought := time.Now(), false
	for i, c := range changes {
		before := r.repairs[c.Kind]
		r.repairs[c.Kind] = repairCount{before.n + 1, now, before.lately.add(now, 1)}
		if i < repairLines && r.repaired(now, c) {
			fought = true
		}
	}
	if more := len(changes) - repairLines; more > 0 && !fought {
		r.log.Warn("repaired more objects that others had changed", "part", r.Status().Name, "more", more, "kinds", r.kinds(changes))
	}
	r.tell(now)
}

// repaired logs one repair, and reports whether it is fought over. The caller holds mu.
func (r *Reporter) repaired(now time.Time, c Change) (fought bool) {
	object := c.object()
	if !r.fights.Repaired(now, object) {
		r.log.Warn("repaired what others had changed", "part", r.Status().Name, "change", c)
		return false
	}
	r.holds.Fought(now, object)
	w := Warning{ID: WarnFought, Text: "somebody keeps undoing the repair of " + c.what() + ", part " + r.Status().Name, Fix: fixFought}
	at := slices.IndexFunc(r.fought, func(f fight) bool { return f.Text == w.Text })
	switch {
	case at >= 0:
		r.fought[at].last = now
	case len(r.fought) < repairLines:
		if r.fought = append(r.fought, fight{w, now}); len(r.fought) == 1 {
			time.AfterFunc(r.calm(), r.endFights)
		}
	}
	return true
}

// calm is how long an object has needed no repair when a fight over it has ended.
func (r *Reporter) calm() time.Duration { return max(fightCalm, r.fights.Within) }

// endFights takes the warnings of fights back that have ended, and looks again as long as others go on.
func (r *Reporter) endFights() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.fought = slices.DeleteFunc(r.fought, func(f fight) bool { return now.Sub(f.last) >= r.calm() })
	r.tell(now)
	if len(r.fought) > 0 {
		time.AfterFunc(time.Second, r.endFights)
	}
}

// what names the object for people; of a device also what is wrong with it.
func (c Change) what() string {
	if c.Kind == KindDevice {
		fault, _, _ := strings.Cut(c.Was, " ")
		return fmt.Sprintf("%s %s (%s)", c.Kind, c.Key, fault)
	}
	return c.Kind + " " + c.Key
}

// object names what a fight is about. Each kind of fault of a device, the first word of Was, counts for itself;
// its value does not.
func (c Change) object() string {
	object := fmt.Sprint(c.Kind, " ", c.Key, " ", c.Op)
	if c.Kind == KindDevice {
		fault, _, _ := strings.Cut(c.Was, " ")
		object += " " + fault
	}
	return object
}

// Fights reports whether somebody keeps undoing repairs: only then is there a reason to ask Held.
func (r *Reporter) Fights() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds.Any(time.Now())
}

// Held reports whether a repair has to wait, because somebody keeps undoing it, and how long.
func (r *Reporter) Held(c Change) (left time.Duration, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds.Held(time.Now(), c.object())
}

func (r *Reporter) kinds(changes []Change) []string {
	seen := map[string]bool{}
	for _, c := range changes {
		seen[c.Kind] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
