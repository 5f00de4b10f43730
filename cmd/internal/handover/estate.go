package handover

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

// Estate is what this daemon has of the one before it and has not taken yet. Its methods may be called at any time.
// Its exported fields are set before.
type Estate struct {
	Log     *slog.Logger
	Keeper  *Keeper         // may have the files open too
	Process control.Process // this one

	mu      sync.Mutex
	leases  []int64
	exports []carrier.Export
	names   []string // of all that there ever were
}

// Add adds files, which are the estate's from now on.
func (e *Estate) Add(exports []carrier.Export) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exports = append(e.exports, exports...)
	for _, x := range exports {
		if !slices.Contains(e.names, x.Name) {
			e.names = append(e.names, x.Name)
		}
	}
}

// Succeed adds what a daemon has left. For the store this process is that daemon from now on.
func (e *Estate) Succeed(l *Legacy) {
	e.Add(l.Exports)
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Nonce != "" {
		e.Process.Nonce, e.Process.Start = l.Nonce, l.Start
		e.leases = append(e.leases, l.Leases...)
	}
}

// Identity returns who this process is for the store, and the handles that were left to it.
func (e *Estate) Identity() (control.Process, []int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Process, slices.Clone(e.leases)
}

// Has reports whether there is a file with a wanted name.
func (e *Estate) Has(wanted func(name string) bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.exports, func(x carrier.Export) bool { return wanted(x.Name) })
}

// Take returns the files whose names are wanted, in their order: they are the caller's.
func (e *Estate) Take(wanted func(name string) bool) (taken []carrier.Export) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exports = slices.DeleteFunc(e.exports, func(x carrier.Export) bool {
		if !wanted(x.Name) {
			return false
		}
		taken = append(taken, x)
		return true
	})
	return taken
}

// TakeNamed is Take of one name.
func (e *Estate) TakeNamed(name string) []carrier.Export {
	return e.Take(func(n string) bool { return n == name })
}

// Unkeep has the service manager close files.
func (e *Estate) Unkeep(names []string) {
	if err := e.Keeper.Remove(names...); err != nil {
		e.Log.Warn("the service manager may have files open that nobody reads: the overlay device or the UDP port may stay busy", "files", names, "err", err)
	}
}

// Drop closes files that are not needed, and says why.
func (e *Estate) Drop(why string, wanted func(name string) bool) {
	exports := e.Take(wanted)
	if len(exports) == 0 {
		return
	}
	names := carrier.NamesOf(exports)
	e.Log.Warn("cannot use what the previous daemon handed over: packets are lost until this one forwards", "files", names, "why", why)
	carrier.CloseExports(exports)
	e.Unkeep(names)
}

// neededWithin is how long files wait for whoever goes on with them, once that one could.
const neededWithin = 10 * time.Second

// DropLater drops after some time what was not taken, until stop is called. Files of traffic wait as long as somebody may still come for
// them: the store, which says what networks there are, may be away, and anybody could have a UDP port that is closed.
func (e *Estate) DropLater(mayCome func() bool) (stop func()) {
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(neededWithin)
		defer tick.Stop()
		for before := true; ; { // who came just before the first tick has had no time either
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			now := mayCome()
			e.Drop("no network here has it", func(name string) bool { return !now && !before || !inherit.IsTraffic(name) })
			before = now
		}
	}()
	return func() { close(ended) }
}

// VNIs returns those of the networks that the daemon before has had.
func (e *Estate) VNIs() (vnis []uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.names {
		if vni, ok := inherit.VNI(name); ok {
			vnis = append(vnis, vni)
		}
	}
	return vnis
}
