package history_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// machine is a host over all restarts of its daemon. Who has claimed it may use it.
type machine struct {
	host
	h      *history
	former []netip.Addr   // addresses that it had
	copied []netip.Prefix // of a clone: the subnets of the original
	runs   int
	clones int

	mu     sync.Mutex     // of the fields below
	busy   bool           // claimed
	proc   *process       // nil: the daemon does not run
	served []netip.Prefix // what the dataplane has, also while no daemon runs
}

// claim takes the machine for a fault, unless one of it is going on.
func (m *machine) claim() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.busy
	m.busy = true
	return !was
}

func (m *machine) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
}

// running returns the process; nil: the daemon does not run.
func (m *machine) running() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc
}

func (m *machine) run(p *process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc = p
}

// process is one run of a daemon, and the Overlay of its Controller.
type process struct {
	m        *machine
	host     host // as it was at the start
	identity control.Process
	link     *link
	pause    gate // shut: the process is stopped
	store    *etcd.Store
	ctl      *controller.Controller
	cancel   context.CancelFunc // ends Run
	done     chan struct{}      // closed when Run has returned
}

// vni is that of the network.
const vni = 1

// VTEPs implements controller.Overlay.
func (p *process) VTEPs() []dataplane.VTEP {
	return []dataplane.VTEP{{Addr: p.host.ip, MAC: dataplane.MAC(p.host.ip, vni), VNI: vni}}
}

// Sync implements controller.Overlay: it notes what is served from now on.
func (p *process) Sync(ctx context.Context, w dataplane.Wanted) error {
	p.pause.pass()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.m.serve(w.Subnets)
	p.pause.pass()
	return nil
}

// serve makes subnets what the machine serves.
func (m *machine) serve(subnets []netip.Prefix) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.served {
		if !slices.Contains(subnets, s) {
			m.h.note(drop, m.host, m.h.now(), s)
		}
	}
	if !slices.Equal(m.served, subnets) {
		m.h.logf(m.name(), "serves %v", subnets)
	}
	m.served = slices.Clone(subnets)
}

func (m *machine) serving() []netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.served)
}

// start starts the daemon.
func (m *machine) start() {
	m.runs++
	p := &process{m: m, host: m.host, done: make(chan struct{})}
	p.identity = control.Process{Boot: fmt.Sprint("boot-", m.machine), NetNS: uint64(m.machine) + 1,
		Nonce: fmt.Sprintf("%d-%d", m.machine, m.runs), Start: time.Now(), Version: "test"}
	if err := p.connect(); err != nil {
		panic(err) // this host lacks something
	}
	previous := m.serving()
	if m.runs == 1 {
		previous = m.copied
	}
	p.ctl = controller.New(controller.Config{Store: p.recorded(), Overlay: p, Network: m.h.network, MTU: 1450, Log: m.h.logger(p.host),
		Node: control.Node{ID: m.id, Name: "host-" + m.name(), PublicIP: m.ip, Previous: previous, Former: m.former, Process: p.identity}})
	m.run(p)
	m.h.logf(m.name(), "starts: %s, previous %v", m.host, previous)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { // end waits for it
		defer close(p.done)
		if err := p.ctl.Run(ctx); err != nil {
			m.h.logf(m.name(), "Run: %v", err)
		}
	}()
}

// connect makes the link and the Store that uses it.
func (p *process) connect() (err error) {
	h := p.m.h
	path := filepath.Join(h.world.dir, fmt.Sprintf("%d-%d-%d", h.number, p.m.machine, p.m.runs))
	var change tamper
	if h.bug.rpc != nil {
		change = h.bug.rpc(p)
	}
	name := p.host.name() // what is under way when the process ends is still noted
	if p.link, err = newLink(path, h.world.conn, change, &h.outage, func(w write) { h.add(name, w) }); err != nil {
		return err
	}
	p.store, err = etcd.Open(context.Background(), etcd.Config{Endpoints: []string{"unix://" + path}, Prefix: h.prefix,
		LeaseTTL: leaseTTL, NodeTTL: h.nodeTTL, Quiet: true, Log: h.logger(p.host)})
	return err
}

// recorded returns the Store as the Controller is to have it: with the bug, and watched.
func (p *process) recorded() control.Store {
	if bug := p.m.h.bug.store; bug != nil {
		return &recording{Store: bug(p.store, p), p: p}
	}
	return &recording{Store: p.store, p: p}
}

// kill ends the daemon as kill -9 does: nothing of it reaches etcd any more, but what is under way.
func (m *machine) kill() {
	m.h.logf(m.name(), "killed")
	m.running().link.stop()
	m.end()
}

// end ends the daemon in good order.
func (m *machine) end() {
	p := m.running()
	m.run(nil)
	p.cancel()
	p.pause.open()
	<-p.done
	_ = p.store.Close() // that of a process that was killed reaches nobody
	p.link.stop()
}

// drain gives the lease back and ends the daemon.
func (m *machine) drain() {
	m.h.logf(m.name(), "drains")
	ctx, cancel := context.WithTimeout(context.Background(), leaseTTL)
	defer cancel()
	if err := m.running().ctl.Drain(ctx); err == nil {
		m.serve(nil)
	} else {
		m.h.logf(m.name(), "drain: %v", err)
	}
	m.end()
}

// recording is a Store that notes who gets which subnet when, and stands still while its process
// is stopped.
type recording struct {
	control.Store
	p *process
}

func (r *recording) h() *history { return r.p.m.h }

// Network implements control.Store.
func (r *recording) Network(ctx context.Context) (control.Network, error) {
	r.p.pause.pass()
	n, err := r.Store.Network(ctx)
	r.p.pause.pass()
	return n, err
}

// Acquire implements control.Store.
func (r *recording) Acquire(ctx context.Context, node control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	return r.ask("acquire", func() (control.Lease, error) { return r.Store.Acquire(ctx, node, vteps) })
}

// Renew implements control.Store.
func (r *recording) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	return r.ask("renew "+l.CIDRs(), func() (control.Lease, error) { return r.Store.Renew(ctx, l) })
}

func (r *recording) ask(what string, f func() (control.Lease, error)) (control.Lease, error) {
	r.p.pause.pass()
	call := r.h().now()
	l, err := f()
	switch {
	case err == nil:
		r.h().took(r.p.host, l, call)
	case !errors.Is(err, control.ErrNoSubnet):
		r.h().logf(r.p.host.name(), "%s: %v", what, err)
	}
	r.p.pause.pass()
	return l, err
}

// Release implements control.Store.
func (r *recording) Release(ctx context.Context, l control.Lease) error {
	r.p.pause.pass()
	call := r.h().now()
	err := r.Store.Release(ctx, l)
	r.h().note(drop, r.p.host, call, subnetsOf(l)...)
	r.p.pause.pass()
	return err
}

// Watch implements control.Store.
func (r *recording) Watch(ctx context.Context) <-chan control.Update {
	updates := make(chan control.Update)
	go func() { // ends with the Store's channel
		defer close(updates)
		for u := range r.Store.Watch(ctx) {
			r.p.pause.pass()
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		}
	}()
	return updates
}
