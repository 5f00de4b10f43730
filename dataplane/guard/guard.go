package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// DefaultMark is the bit of the packet mark that lets datagrams of this host's overlay pass, unless another is given.
const DefaultMark = 0x100000

// Config configures the guard of one network.
type Config struct {
	Log *slog.Logger
	// VNI and Port tell the datagrams of this network. Several networks on one host have a guard each.
	VNI  uint32
	Port uint16
	// Check is what is asked of a datagram. With SourceOff there is no guard, and one of an earlier run is removed.
	Check dataplane.SourceCheck
	// AnyPeerFrom are networks from whose addresses any peer's packets may come, with SourceInner.
	AnyPeerFrom []netip.Prefix
	// AllowPlain lets packets with overlay sources come by the underlay without encapsulation.
	AllowPlain bool
	// Mark has the bits of the packet mark that datagrams of this host have, one at least.
	Mark uint32
	// Underlay is the interface of the underlay, and IPv4 and IPv6 are the families that VTEPs have there.
	Underlay   string
	Link       int // index of Underlay; 0: not known
	IPv4, IPv6 bool
	// Direct says that packets of peers may come without encapsulation, by direct routes.
	Direct bool
	// Alone says that this process has no other network on the port: then nothing else is for its sockets.
	Alone bool
	// Settle is how long after Open AllowPlain holds whatever it says: when the network config has changed, peers may
	// still send, or send already, as the other one has it.
	Settle time.Duration
	// Off tells whether the guard is switched off: then it has no rules. Whoever changes that calls Switched. nil: never.
	Off func() bool
	// Resync is the time between two comparisons with the kernel without a notification; 0 means half a minute.
	Resync time.Duration
	// Deaf notices no changes of others but by Resync, which is a few seconds then: for tests.
	Deaf bool

	noKinds bool     // the kernel cannot tell the kinds of devices (before 5.6)
	extra   []string // names of Forwards
}

const defaultResync = 30 * time.Second

func (c *Config) families() (all []family) {
	if c.IPv4 {
		all = append(all, ipv4)
	}
	if c.IPv6 {
		all = append(all, ipv6)
	}
	return all
}

// devices are the names of the overlay devices.
func (c *Config) devices() []string {
	names := []string{dataplane.DeviceName(c.VNI)}
	if c.IPv6 && c.VNI <= dataplane.MaxDeviceVNIV6 {
		names = append(names, dataplane.DeviceNameV6(c.VNI))
	}
	return append(names, c.extra...)
}

// links are the indices of the overlay devices that there are.
func (c *Config) links() (all []int) {
	for _, name := range c.devices() {
		if l, err := net.InterfaceByName(name); err == nil {
			all = append(all, l.Index)
		}
	}
	return all
}

func (c *Config) anyPeerFrom(f family) []netip.Prefix {
	if c.Check != dataplane.SourceInner {
		return nil
	}
	return ofFamily(c.AnyPeerFrom, f)
}

func (c *Config) check() error {
	switch {
	case c.Port == 0 || c.VNI >= 1<<24:
		return fmt.Errorf("VNI %d and port %d: want a VNI below 2^24 and a port", c.VNI, c.Port)
	case c.Mark == 0:
		return errors.New("mark 0: want a bit at least")
	case !c.IPv4 && !c.IPv6:
		return errors.New("no family of the underlay")
	case c.Underlay == "":
		return errors.New("no interface of the underlay")
	}
	return nil
}

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

	mu        sync.Mutex
	kernel    bool  // the kernel forwards
	settled   facts // of the last Prune
	wanted    facts // of the last Sync, with settled
	synced    bool
	members   members
	chains    []encoded // that were written; nil: not known
	there     bool      // the kernel had chains and members
	indices   []int     // of the devices that chains name
	text      string    // all of it but the members
	seen      uint32    // the generation of nftables at which it had
	relaxed   time.Time // until when AllowPlain holds
	unsettled bool      // that is over, and the rules are not yet so
	faults    dataplane.Faults
	notices   pace.Notices
	told      Drops // what the log has
}

var _ dataplane.Part = (*Guard)(nil)

// Open prepares for the rules. If the kernel cannot have them, it says why. If there is no overlay device yet, it
// forbids all until the first Sync; what an earlier run has left is not touched before that.
func Open(c Config) (*Guard, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	switch {
	case c.Deaf:
		c.Resync = watch.DeafResync
	case c.Resync == 0:
		c.Resync = defaultResync
	}
	g := &Guard{cfg: c, name: dataplane.GuardTable(c.VNI), report: dataplane.NewReporter(c.Log, "guard"), kernel: true, relaxed: time.Now().Add(c.Settle)}
	if c.Deaf {
		g.report.Polls(c.Resync)
	}
	g.members = newMembers(&g.cfg, kind{kernel: true})
	if c.Check == dataplane.SourceOff {
		g.open.Store(true)
		_, err := Cleanup(c.VNI)
		if err != nil {
			c.Log.Warn("the guard of an earlier run may be left", "table", g.name, "err", err)
		}
		return g, nil
	}
	w, err := watch.Open(watch.Groups{Protocol: unix.NETLINK_NETFILTER, Must: []int{unix.NFNLGRP_NFTABLES}, Deaf: c.Deaf})
	if err != nil {
		return nil, fmt.Errorf("open guard: %w", explain(err))
	}
	g.watch = w
	if g.links, err = watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK}, Deaf: c.Deaf}); err != nil {
		w.Close()
		return nil, fmt.Errorf("open guard: %w", err)
	}
	if err := g.begin(); err != nil {
		g.Close()
		return nil, fmt.Errorf("open guard: %w", explain(err))
	}
	return g, nil
}

// begin learns what an earlier run has left, and tries whether the kernel takes all that the rules need.
func (g *Guard) begin() error {
	c, err := read(g.name, true)
	if err != nil {
		return err
	}
	if err := g.try(); err != nil {
		return err
	}
	if c.exists {
		g.members.adopt(c.sets)
		g.there, g.text = true, c.text
		g.open.Store(true)
		return g.books.begin(g.name)
	}
	for _, d := range g.cfg.devices() {
		if _, err := netlink.LinkByName(d); err == nil {
			g.open.Store(true) // it forwards already
			return nil
		}
	}
	return g.write(g.cfg.factsOf(dataplane.Wanted{}, true))
}

// try makes a table with every kind of expression, and removes it in the same batch.
func (g *Guard) try() error {
	name := g.name + "-try"
	own, all := prefixes("192.0.2.0/24", "2001:db8::/64"), prefixes("192.0.2.0/23", "2001:db8::/48")
	for _, kernel := range []bool{true, false} {
		f := facts{own: own, networks: all, kind: kind{kernel: kernel}, sets: map[string]bool{}}
		steps := newTable(name)
		for _, u := range g.cfg.families() {
			f.sets[f.hosts(u)] = true
			f.sets[pairSet(u, ipv4, 24)] = true
			f.sets[pairSet(u, ipv6, 64)] = true
		}
		for set := range f.sets {
			steps = append(steps, nft.NewSet(nft.Inet, name, setOf(set), uint32(len(steps))))
		}
		chains, err := g.cfg.encode(f)
		if err != nil {
			return err
		}
		err = nft.Commit(append(append(steps, changeChains(name, nil, chains)...), nft.DeleteTable(nft.Inet, name)))
		if errors.Is(err, unix.EOPNOTSUPP) && !g.cfg.noKinds {
			g.cfg.noKinds = true
			return g.try()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// explain adds a way to mend an error, if one is known.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run as root or with CAP_NET_ADMIN", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: the kernel may lack nftables of family inet with sets, counters, limits and fib (modprobe nf_tables nft_fib_inet nft_ct nft_limit)", err)
	}
	return err
}

// Forwards says who forwards from the next Sync on: the kernel, which is so unless this says something else, or this process.
// Names are those that the overlay devices of the kernel have besides the usual ones, while this process forwards too.
func (g *Guard) Forwards(kernel bool, names ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kernel, g.cfg.extra = kernel, names
}

// Holds reports whether the overlay device may be up: the rules are in place, or none are wanted.
func (g *Guard) Holds() bool { return g.open.Load() }

// Sync admits what w wants beside what was wanted before.
func (g *Guard) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.cfg.factsOf(w, g.kernel)
	g.members.admit(w.Peers, f.kind)
	g.wanted = f.and(g.settled)
	g.synced = true
	err := g.ensure(g.wanted)
	g.faults.Know(err)
	if !g.kernel && err != nil {
		g.warn(err) // this process checks, too
		return w, nil
	}
	return w, err
}

// Prune forgets what w does not want.
func (g *Guard) Prune(_ context.Context, w dataplane.Wanted) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members.forget()
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

// Relax admits packets that are not encapsulated, until the guard of the next session has settled: the network config changes.
func (g *Guard) Relax() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.relaxed = time.Now().Add(time.Hour)
	if g.synced && !g.failed.Load() {
		g.faults.Tell(g.cfg.Log, g.ensure(g.wanted))
	}
}

// Rewrite makes the rules for w alone true at once, after [Guard.Forwards].
func (g *Guard) Rewrite(w dataplane.Wanted) error {
	if _, err := g.Sync(context.Background(), w); err != nil {
		return err
	}
	return g.Prune(context.Background(), w)
}

func (g *Guard) warn(err error) {
	if due, _ := g.notices.Due(time.Now(), pace.Notice{Key: "write", Text: err.Error()}); len(due) > 0 {
		g.cfg.Log.Warn("no guard in front of the sockets: floods take their room, and processes of this host can send in its name", "err", err)
	}
}

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

var errOff = errors.New("switched off by `overlayd guard off`: switch it on again by `overlayd guard on`, or restart")

// Kinds of objects, as Status and the log of repairs name them.
const (
	kindTable = "guard table"
	kindVTEP  = "guarded vtep"
)

func (g *Guard) publish(err error) {
	vteps := 0
	for _, u := range g.cfg.families() {
		vteps += len(g.members.counts[g.members.kind.hosts(u)])
	}
	t, v := dataplane.ObjectStatus{Kind: kindTable, Wanted: 1}, dataplane.ObjectStatus{Kind: kindVTEP, Wanted: vteps}
	if err == nil {
		t.Have, v.Have = 1, vteps
	}
	g.report.Publish(dataplane.StateOf(err), err, t, v)
}

// write makes the rules of f and the members true. The caller holds mu.
func (g *Guard) write(f facts) error {
	f.sets, f.settling = g.members.names(), time.Now().Before(g.relaxed)
	f.indices = g.cfg.links()
	g.indices = f.indices
	chains, err := g.cfg.encode(f)
	if err != nil {
		return err
	}
	if g.there && g.commit(nil, chains, f.sets) == nil {
		return nil
	}
	// There is no table, or others have changed it.
	g.there, g.chains = false, nil
	g.members.lost()
	g.books.keep(g.name)
	if err := g.commit(newTable(g.name), chains, f.sets); err != nil {
		g.open.Store(g.isThere())
		return err
	}
	g.books.restart()
	return nil
}

// isThere reports whether the kernel has the rules that were written last, as far as it can be told.
func (g *Guard) isThere() bool {
	c, err := read(g.name, false)
	return err == nil && c.exists && (c.text == g.text || g.text == "")
}

// commit does the steps and all that is then missing or not wanted, in one go.
func (g *Guard) commit(steps []nft.Step, chains []encoded, sets map[string]bool) error {
	rules := changeChains(g.name, g.chains, chains)
	grow, shrink := g.members.grow(g.name, sets), g.members.shrink(g.name, sets)
	steps = slices.Concat(steps, grow, rules, shrink)
	if len(steps) == 0 {
		return nil
	}
	before, err := generation()
	if err != nil {
		return err
	}
	if err := nft.Commit(steps); err != nil {
		return err
	}
	alone := g.there && before == g.seen // nobody else had changed anything
	same := g.there && len(rules) == 0 && len(sets) == len(g.members.have)
	g.members.written(sets)
	g.chains, g.there = chains, true
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
	if g.text = c.text; c.generation == before+1 {
		g.seen = c.generation
	}
	return nil
}

func generation() (n uint32, err error) {
	err = nft.Read(nft.Inet, func(r nft.Reader) (err error) { n, err = r.Generation(); return err })
	return n, err
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

// Switched removes the rules if Config.Off says so, or writes them again.
func (g *Guard) Switched() error {
	if g.cfg.Check == dataplane.SourceOff {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.synced && !g.isOff() {
		return nil // the first Sync writes them
	}
	return g.ensure(g.wanted)
}

func (g *Guard) isOff() bool { return g.cfg.Off != nil && g.cfg.Off() }

// remove removes the rules of a guard that is switched off. The caller holds mu.
func (g *Guard) remove() error {
	g.books.keep(g.name)
	_, err := Cleanup(g.cfg.VNI)
	if err != nil {
		return err
	}
	g.books.restart()
	g.members.lost()
	g.chains, g.there = nil, false
	g.open.Store(true)
	g.failed.Store(false)
	g.report.Publish(dataplane.StateDegraded, errOff)
	return nil
}

// IsOff reports whether there is no check of sources: by Config, or because it was switched off.
func (g *Guard) IsOff() bool { return g.isOff() || g.cfg.Check == dataplane.SourceOff }
