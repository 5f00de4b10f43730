package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/encap"
)

// Port is one UDP port of this host, with the carriers that VXLAN networks with this
// port need. A [Dataplane] has a Port of its own, unless Config.Shared names one that
// several networks share. Each received datagram goes to the network of its VNI.
// Networks can come and go, and the others lose no packet.
//
// The carriers are opened with the first network, whose device may have to make room for
// them. Two processes cannot have the same port.
type Port struct {
	log      *slog.Logger
	locals   []netip.AddrPort  // the addresses at which it receives, IPv4 first
	openers  []carrier.Opener  // of the carriers
	opened   chan struct{}     // closed once there are carriers
	carriers []carrier.Carrier // then constant, in the order of openers
	workers  []*portWorker     // then constant
	captures *capture.Hub
	hide     func()           // then constant: hides the port's datagrams from captures
	ended    chan struct{}    // closed once Run has ended; the carriers close with the last network
	gate     *gate            // received datagrams wait behind it
	still    atomic.Bool      // the end of Run is not a fault
	in       *inherit.Files   // what it may inherit; nil: nothing
	bound    []netip.AddrPort // the addresses of locals whose sockets are inherited
	runs     atomic.Bool      // Run was called, and ends the port; or the port was ended without Run

	flood flood // protects against floods

	opening sync.Mutex // held from the check of who has the port until enter has replaced them

	mu   sync.Mutex // of all below, and of opening, ending and closing
	vnis []uint32   // VNIs of the networks
}

// portWorker is a receiveWorker of one carrier.
type portWorker struct {
	receiveWorker
	family int // of the carrier
	index  int // among those of the carrier
}

var (
	// ErrVNITaken says that the port already has a network with that VNI.
	ErrVNITaken = errors.New("another network of this port has the VNI")

	errPortClosed = errors.New("the port is closed: its Run has ended")
)

// newPort makes a Port for cfg over the given carriers.
func newPort(cfg Config, openers ...carrier.Opener) *Port {
	p := &Port{log: cfg.Log, locals: cfg.locals(), openers: openers, captures: cfg.Captures, opened: make(chan struct{}), ended: make(chan struct{}), gate: newGate(cfg), in: cfg.in, flood: flood{log: cfg.Log, begin: floodBegin}}
	for _, local := range p.locals {
		if cfg.in.Has(inherit.SocketName(local)) {
			p.bound = append(p.bound, local)
		}
	}
	return p
}

// isFor reports whether networks of cfg may use the port.
func (p *Port) isFor(cfg Config) bool { return slices.Equal(p.locals, cfg.locals()) }

// descriptions returns the descriptions of the carriers, which need not be open.
func (p *Port) descriptions() (ds []carrier.Description) {
	for _, o := range p.openers {
		ds = append(ds, o.Description)
	}
	return ds
}

// maxHeadroom returns the headroom of a packet that may leave by any of the carriers.
func maxHeadroom(carriers []carrier.Description) int {
	n := encap.HeaderLen
	for _, d := range carriers {
		n = max(n, d.Headroom)
	}
	return n
}

// Run receives for the networks until ctx ends, and then returns nil within 100 ms.
// It logs a temporary read error and tries again. If a carrier is unusable, it returns an
// error. Then the Run of each remaining network also ends with an error, because that
// network would receive nothing.
func (p *Port) Run(ctx context.Context) error {
	if !p.runs.CompareAndSwap(false, true) {
		return errPortClosed
	}
	defer p.end()
	select {
	case <-p.opened:
	case <-ctx.Done():
		return nil
	}
	p.gate.await(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range p.workers {
		g.Go(func() error { return w.run(ctx, waitOut(p.log, fmt.Sprintf("on UDP port %d", p.locals[0].Port()))) })
	}
	g.Go(func() error {
		p.watchFlood(ctx)
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		for _, w := range p.workers {
			w.receiver.Stop()
		}
		return nil
	})
	return g.Wait()
}

// Stats returns the counts that belong to no single network: DropBadVNI, DropQueueFull,
// DropBadHeader of datagrams too short for a VNI, DropFlood, NarrowPaths and RxBatches. If the Port is not
// shared, they are in [Dataplane.Stats].
func (p *Port) Stats() (s dataplane.Stats) {
	p.addTo(&s)
	return s
}

func (p *Port) addTo(s *dataplane.Stats) {
	if !p.isOpen() {
		return
	}
	for _, w := range p.workers {
		w.AddTo(&s.RxPackets, &s.RxBytes, s)
	}
	for _, c := range p.carriers {
		c.AddTo(s)
	}
}

// unbound returns the addresses to which the carriers are still to be bound.
func (p *Port) unbound() []netip.AddrPort {
	if p.isOpen() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.locals), func(a netip.AddrPort) bool { return slices.Contains(p.bound, a) })
}

// isOpen reports whether there are carriers.
func (p *Port) isOpen() bool { return isClosed(p.opened) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// check returns why a network cannot enter; nil: it can.
func (p *Port) check(vni uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkLocked(vni)
}

func (p *Port) checkLocked(vni uint32) error {
	if isClosed(p.ended) {
		return errPortClosed
	}
	if slices.Contains(p.vnis, vni) {
		return fmt.Errorf("VNI %d: %w", vni, ErrVNITaken)
	}
	return nil
}

// entrance is what a network does while it enters a port.
type entrance struct {
	free   func(family int) error // makes room for the carrier of a family, which is opened next; nil: there is room
	attach func()                 // attaches the network, before anything is received; nil: it is attached later
}

// enter adds a network. When it returns, the carriers are open. The first network decides
// their number of workers.
func (p *Port) enter(vni uint32, workers int, e entrance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkLocked(vni); err != nil {
		return err
	}
	if p.workers == nil {
		if err := p.open(workers, e.free); err != nil {
			p.abandon() // the next network tries again
			return err
		}
	}
	if e.attach != nil {
		e.attach()
	}
	if !p.isOpen() {
		p.hide = p.show()
		close(p.opened)
	}
	p.vnis = append(p.vnis, vni)
	p.admit(vni, nil) // until its first Sync
	p.gate.pass(vni)
	return nil
}

// maxPairs bounds the pairs of workers, each of which has 5 MB of buffers.
const maxPairs = 8

// pairs returns how many workers there are of each kind.
func pairs(multi bool) int {
	if !multi {
		return 1
	}
	return min(runtime.GOMAXPROCS(0), maxPairs)
}

// open opens the carriers, each one right after there is room for it.
func (p *Port) open(workers int, free func(family int) error) error {
	for _, o := range p.openers {
		if free != nil {
			if err := free(o.Family); err != nil {
				return err
			}
		}
		if err := p.add(o.Family, o.Open, workers); err != nil {
			return err
		}
	}
	return nil
}

// add opens a carrier.
func (p *Port) add(family int, open func(workers int) (carrier.Carrier, error), workers int) error {
	c, err := open(workers)
	if err != nil {
		return err
	}
	p.carriers = append(p.carriers, c)
	for i, r := range c.Receivers() {
		p.workers = append(p.workers, &portWorker{receiveWorker: receiveWorker{receiver: r}, family: family, index: i})
	}
	return nil
}

// abandon closes the carriers before a network uses them.
func (p *Port) abandon() {
	p.close()
	p.carriers, p.workers, p.bound = nil, nil, nil
}

// show makes datagrams of no network visible to captures, until leave is called.
func (p *Port) show() (leave func()) {
	points := make([]*capture.Point, 0, len(p.workers))
	for _, w := range p.workers {
		points = append(points, &w.Point)
	}
	return p.captures.Join(0, points...)
}

// exit removes a network that entered, and its lanes. When it returns, nothing uses them
// any more.
func (p *Port) exit(vni uint32) {
	p.dismiss(vni)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vnis = slices.DeleteFunc(p.vnis, func(v uint32) bool { return v == vni })
	if isClosed(p.ended) && len(p.vnis) == 0 {
		p.close()
	}
}

// wait returns nil when ctx ends, or an error if Run ends before.
func (p *Port) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.ended:
		if !p.still.Load() {
			return errPortClosed
		}
		<-ctx.Done()
		return nil
	}
}

// end is the end of Run.
func (p *Port) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.ended)
	if len(p.vnis) == 0 {
		p.close()
	}
}

func (p *Port) close() {
	if p.isOpen() {
		p.hide()
	}
	for _, c := range p.carriers {
		c.Close()
	}
	if isClosed(p.ended) {
		p.in.Close() // what no carrier has taken
	}
}

// newSenders makes the senders of one worker of a network, one for each carrier.
func (p *Port) newSenders() (out []carrier.Sender) {
	for _, c := range p.carriers {
		out = append(out, c.NewSender())
	}
	return out
}

// refresh finds out the path MTU to each peer of f, and reports whether to do so again soon.
func (p *Port) refresh(f *forwarding) (soon bool) {
	if !p.isOpen() {
		return false
	}
	for _, c := range p.carriers {
		soon = c.Refresh(f.entries, f.mtu) || soon
	}
	return soon
}

// objects counts the objects of the carriers on this host, and returns their repairs.
func (p *Port) objects() (objects []dataplane.ObjectStatus, repaired []dataplane.Change) {
	if !p.isOpen() {
		return nil, nil
	}
	for _, c := range p.carriers {
		if k, ok := c.(carrier.Keeper); ok {
			o, r := k.Objects()
			objects, repaired = joinCounts(objects, o), append(repaired, r...)
		}
	}
	return objects, repaired
}

// joinCounts adds the counts of two carriers that keep the same kinds.
func joinCounts(a, b []dataplane.ObjectStatus) []dataplane.ObjectStatus {
	for _, o := range b {
		if i := slices.IndexFunc(a, func(x dataplane.ObjectStatus) bool { return x.Kind == o.Kind }); i >= 0 {
			a[i].Wanted += o.Wanted
			a[i].Have += o.Have
		} else {
			a = append(a, o)
		}
	}
	return a
}
