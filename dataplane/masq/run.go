package masq

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// gather is the time between the first notification and the comparison, so
	// that one cause of many changes is one repair.
	gather = 100 * time.Millisecond
	// maxPause bounds how far comparisons are spread if they take long.
	maxPause = 500 * time.Millisecond
)

// Run repairs what others do to the rules, until ctx ends or Close: within a second of a
// notification, and every resync period without one. It then returns nil and leaves the rules
// in place. It executes a process only to repair rules that iptables writes. It is called once.
func (r *Rules) Run(ctx context.Context, _ func()) error {
	r.running.Store(true)
	defer r.running.Store(false)
	return r.watch.Run(ctx, watch.Loop{
		Concerns: func(h unix.NlMsghdr, body []byte) bool { return namesOf(r.config.VNI).concern(h, body) },
		Look:     func(ctx context.Context) error { r.repair(ctx); return nil },
		Spread:   pace.Spread{Gather: gather, Between: gather, Rest: maxPause},
		Resync:   r.config.Resync,
		Pending:  r.pending,
	})
}

// concern reports whether a notification is about a table that we write to.
func (n names) concern(h unix.NlMsghdr, body []byte) bool {
	f, table, ok := nft.ChangedTable(h, body)
	return ok && (f == ipv4 || f == ipv6) && (table == n.table || table == natTable || table == filterTable)
}

// pending reports whether rules could not be written.
func (r *Rules) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.keepers, func(k *keeper) bool { return k.err != nil })
}

// repair makes the last wanted rules true again.
func (r *Rules) repair(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted == nil {
		return
	}
	var errs []error
	for i, k := range r.keepers {
		if left, held := r.report.Held(k.change()); held { // of the other family there is no fight
			time.AfterFunc(left, r.watch.Wake)
			if k.err != nil {
				errs = append(errs, k.err)
			}
			continue
		}
		failed := k.err != nil
		wrote, err := k.apply(ctx, r.wanted[i])
		if ctx.Err() != nil {
			r.finish(ctx, errs)
			return
		}
		k.err = nil
		switch {
		case err != nil:
			k.err = k.explain(err)
			errs = append(errs, k.err)
			r.warn(k)
		case wrote && failed:
			r.config.Log.Info("wrote the traffic rules that could not be written before", "family", k.family.String())
		case wrote:
			r.report.Repaired(k.change())
		}
	}
	r.finish(ctx, errs)
}

// change is a repair of the rules.
func (k *keeper) change() dataplane.Change {
	return dataplane.Change{Op: dataplane.OpReplace, Kind: kindRules, Key: k.family.String()}
}

// warn logs why the rules of a family cannot be written, unless Sync has returned the same.
func (r *Rules) warn(k *keeper) {
	if due, _ := r.notices.Due(time.Now(), k.notice()); len(due) > 0 {
		attrs := []any{"err", k.err}
		if fix := dataplane.FixOf(k.err); fix != "" {
			attrs = append(attrs, "fix", fix)
		}
		r.config.Log.Warn("repair traffic rules", attrs...)
	}
}
