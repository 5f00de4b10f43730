package guard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// Guard keeps the rules of one network. Its methods may be called from several goroutines, whose threads are in one network
// namespace.
type Guard struct {
	cfg    Config
	name   string              // of the table
	watch  *watch.Subscription // of changes of nftables
	links  *watch.Subscription // of the overlay devices
	report *dataplane.Reporter
	books  books

	open   atomic.Bool // no guard is wanted, or it is in place
	failed atomic.Bool // it could not be made as wanted

	relinked atomic.Bool // others may be another now

	mu        sync.Mutex
	kernel    bool  // the kernel forwards
	settled   facts // of the last Prune
	wanted    facts // of the last Sync, with settled
	synced    bool
	members   members
	chains    []written // that were written, or were left by an earlier run
	basis     basis     // of the rules that were written, or were tried last
	there     bool      // the kernel had chains and members
	tried     bool      // what the kernel lacks is known
	indices   []int     // of the devices that chains name
	others    vnis      // that chains name
	vrf, ipvs bool      // that chains know of
	text      digest    // of all of it but the members
	seen      uint32    // the generation of nftables at which it had
	relaxed   time.Time // until when AllowPlain holds
	unsettled bool      // that is over, and the rules are not yet so
	isShut    bool      // the port is shut until the first Sync
	faults    dataplane.Faults
	notices   pace.Notices
	told      Drops // what the log has
	joined    bool  // a peer has been admitted since
}

var _ dataplane.Part = (*Guard)(nil)

// Holds reports whether the overlay device may be up: the rules are in place, or none are wanted.
func (g *Guard) Holds() bool { return g.open.Load() }

// Sync admits what w wants beside what was wanted before.
func (g *Guard) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.cfg.factsOf(w, g.judges())
	before := g.vteps()
	g.members.admit(w.Peers, f.kind)
	g.joined = g.joined || g.vteps() > before
	g.wanted = f.and(g.settled)
	g.synced = true
	err := g.ensure(g.wanted)
	g.faults.Know(err)
	if !g.kernel && err != nil {
		g.warn(err) // this process checks, too
		err = nil
	}
	if err == nil {
		g.cfg.Synced()
	}
	return w, err
}

// judges reports whether the rules judge what the kernel forwards. They also do if this process forwards and a vxlan device is there whose place it
// takes: the device carries packets until the userspace dataplane has synced, which it does before Prune. The caller holds mu.
func (g *Guard) judges() bool {
	if g.kernel {
		return true
	}
	g.cfg.extra = nil
	for _, name := range g.cfg.devices() {
		if l, err := netlink.LinkByName(name); err == nil && l.Type() == "vxlan" {
			g.cfg.extra = g.cfg.Temporary // the devices of this process
			return true
		}
	}
	return false
}

// Prune forgets what w does not want.
func (g *Guard) Prune(_ context.Context, w dataplane.Wanted) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members.forget()
	if !g.kernel {
		g.cfg.extra = nil // the kernel's devices are gone
	}
	g.settled = g.cfg.factsOf(w, g.kernel)
	g.wanted = g.settled
	if g.failed.Load() {
		return nil // Sync has told, and Run tries again
	}
	if err := g.ensure(g.wanted); err != nil && g.kernel {
		return err
	}
	return nil
}

func (g *Guard) warn(err error) {
	if due, _ := g.notices.Due(time.Now(), pace.Notice{Key: "write", Text: err.Error()}); len(due) > 0 {
		g.cfg.Log.Warn("no guard in front of the sockets: floods take their room, and processes of this host can send in its name", "err", err)
	}
}

// Status implements dataplane.Part.
func (g *Guard) Status() dataplane.PartStatus { return g.report.Status() }

// Close releases what Open acquired. The rules stay.
func (g *Guard) Close() error {
	if g.watch == nil {
		return nil
	}
	return errors.Join(g.watch.Close(), g.links.Close())
}
