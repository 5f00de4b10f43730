package guard

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// ensure makes the rules of f true, and publishes how that went. The caller holds mu.
func (g *Guard) ensure(f facts) error {
	if g.cfg.Check == dataplane.SourceOff {
		g.report.Publish(dataplane.StateOK, nil)
		return nil
	}
	if g.isOff() {
		return g.remove()
	}
	err := g.write(f)
	if err != nil {
		err = fmt.Errorf("write guard %s: %w", g.name, explain(err))
	}
	g.failed.Store(err != nil)
	g.publish(err)
	return err
}

var errOff = dataplane.WithFix(errors.New("all rules are switched off by `overlayd guard off`, those of --plain-source too"),
	"switch them on again by `overlayd guard on`, or restart the daemon")

// Kinds of objects, as Status and the log of repairs name them.
const (
	kindTable = "guard table"
	kindVTEP  = "guarded vtep"
)

func (g *Guard) publish(err error) {
	vteps := g.vteps()
	t, v := dataplane.ObjectStatus{Kind: kindTable, Wanted: 1}, dataplane.ObjectStatus{Kind: kindVTEP, Wanted: vteps}
	if err == nil {
		t.Have, v.Have = 1, vteps
	}
	g.report.Publish(dataplane.StateOf(err), err, t, v)
}

// vteps returns how many addresses of peers are admitted.
func (g *Guard) vteps() (n int) {
	for _, u := range g.cfg.families() {
		n += g.members.set(hostSet(u)).wanted
	}
	return n
}

// write makes the rules of f and the members true. The caller holds mu.
func (g *Guard) write(f facts) error {
	f.sets, f.settling = g.members.names(), time.Now().Before(g.relaxed)
	f.indices = g.cfg.links()
	g.indices = f.indices
	if g.relinked.Swap(false) {
		g.others, g.vrf = g.cfg.otherLinks()
	}
	g.ipvs = g.cfg.tracksIPVS()
	f.others, f.vrf, f.ipvs = g.others, g.vrf, g.ipvs
	basis := g.cfg.basisOf(f) // to compare it costs little beside encoding, which takes half a millisecond
	if g.there && reflect.DeepEqual(basis, g.basis) && g.commit(false, nil, f.sets) == nil {
		return nil
	}
	chains, err := g.cfg.encode(f)
	if err != nil {
		return err
	}
	g.basis = basis
	if g.there && g.commit(false, chains, f.sets) == nil {
		return nil
	}
	// There is no table, or others have changed it.
	g.there, g.chains = false, nil
	g.members.lost()
	g.books.keep(g.name)
	err = g.commit(true, chains, f.sets)
	if lacks(err) && !g.tried { // the table of an earlier run did without
		if err := g.try(); err != nil {
			return err
		}
		return g.write(f)
	}
	if err != nil {
		g.open.Store(g.isThere())
	}
	return err
}

// isThere reports whether the kernel has the rules that were written last, as far as it can be told.
func (g *Guard) isThere() bool {
	c, err := read(g.name, false)
	return err == nil && c.exists && (c.text == g.text || g.text == digest{})
}

// turn lets no guard of this process read while another one writes: it would have to read again.
var turn sync.RWMutex

// commit writes what is missing and removes what is not wanted, in one transaction. With create it makes a new table first. Without chains
// those that there are stay.
func (g *Guard) commit(create bool, chains []encoded, sets map[string]bool) error {
	var steps []nft.Step
	if create {
		steps = newTable(g.name)
	}
	var rules []nft.Step
	if chains != nil {
		rules = changeChains(g.name, g.chains, chains)
	}
	grow, shrink := g.members.grow(g.name, sets), g.members.shrink(g.name, sets)
	steps = slices.Concat(steps, grow, rules, shrink)
	if len(steps) == 0 {
		return nil
	}
	turn.Lock()
	defer turn.Unlock()
	before, err := nft.Generation(nft.Inet)
	if err != nil {
		return err
	}
	if !create && len(rules) > 0 && before != g.seen {
		if before, err = g.unchanged(); err != nil {
			return err
		}
	}
	if err := nft.Commit(steps); err != nil {
		return err
	}
	if create {
		g.books.restart() // it counts from zero, also if it cannot be read below
	}
	alone := g.there && before == g.seen // nobody else had changed anything
	same := g.there && len(rules) == 0 && len(sets) == g.members.made()
	g.members.written(sets)
	if g.there = true; chains != nil {
		g.chains = remember(chains)
	}
	g.open.Store(true)
	if same {
		if alone {
			g.seen = before + 1
		}
		return nil
	}
	c, err := read(g.name, false)
	if err != nil {
		return err
	}
	// Another program may have changed nftables since before, which was about a millisecond ago. A change of its own tables is no reason to write this
	// table anew. A change of this table is not noticed.
	if g.text = c.text; c.generation == before+1 {
		g.seen = c.generation
	}
	return nil
}

// errChanged says that others may have changed the table.
var errChanged = errors.New("others have changed nftables")

// unchanged reads the table before a change of it, and returns the generation of nftables of that moment. It fails if the table is not as it was
// written last: what is read after the change would otherwise be taken for what was written.
func (g *Guard) unchanged() (generation uint32, err error) {
	c, err := read(g.name, false)
	if err == nil && (!c.exists || c.text != g.text) {
		err = errChanged
	}
	return c.generation, err
}
