package pace

import "time"

const (
	fightWithin  = 2 * time.Second // Fights.Within, unless it is given
	fightRepairs = 5               // this many repairs that belong together are a fight
	fightsKept   = 1024            // objects remembered before old ones are forgotten
)

// Fights tells whether somebody keeps undoing the repair of an object. The zero value is ready; it is for
// one goroutine.
type Fights struct {
	Within   time.Duration      // repairs of one object belong together if each comes within this time of the last; 0: 2 s
	repaired map[string]repairs // by object
}

type repairs struct {
	n    int // that belong together
	last time.Time
}

// Repaired notes the repair of an object, and reports whether it was fought over.
func (f *Fights) Repaired(now time.Time, object string) bool {
	if f.repaired == nil {
		f.repaired = map[string]repairs{}
	}
	r := f.repaired[object]
	if f.isOver(r, now) {
		r.n = 0
	}
	r.n++
	r.last = now
	f.repaired[object] = r
	if len(f.repaired) > fightsKept {
		f.forget(now)
	}
	return r.n >= fightRepairs
}

func (f *Fights) isOver(r repairs, now time.Time) bool {
	within := f.Within
	if within <= 0 {
		within = fightWithin
	}
	return now.Sub(r.last) > within
}

// forget drops what is over, and everything if that is not enough.
func (f *Fights) forget(now time.Time) {
	for o, r := range f.repaired {
		if f.isOver(r, now) {
			delete(f.repaired, o)
		}
	}
	if len(f.repaired) > fightsKept {
		clear(f.repaired)
	}
}
