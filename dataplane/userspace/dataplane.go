package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/overlayd/overlayd/dataplane"
)

var (
	errClosed = errors.New("the dataplane is closed")
)

// Dataplane is the userspace dataplane. It implements dataplane.Dataplane.
type Dataplane struct {
	log     *slog.Logger
	report  *dataplane.Reporter
	core    *core
	host    host
	port    *Port
	shared  bool      // the port, with other networks; else Run runs it
	sources sourceLog // of Run

	entered chan struct{} // closed once the port was entered: there is traffic from then on

	mu      sync.Mutex // of all below, and of changes to the host
	wanted  *dataplane.Wanted
	refused error // of the last Sync: by peer
	closed  bool
}

// newDataplane joins a host, which is then its own, and a Port. The port is entered last, or by
// the first Sync if the host has predecessors. After an error the host is still the caller's.
func newDataplane(cfg Config, h host, p *Port) (*Dataplane, error) {
	d := &Dataplane{log: cfg.Log, report: dataplane.NewReporter(cfg.Log, "userspace"), host: h, port: p, shared: cfg.Shared != nil, sources: sourceLog{log: cfg.Log, attrs: cfg.LogAttrs},
		core: newCore(cfg, p.descriptions(), len(h.queues())), entered: make(chan struct{})}
	if s, ok := h.(successor); ok && len(s.predecessors()) > 0 {
		return d, nil
	}
	return d, d.enter(nil)
}

// vni is that of the network.
func (d *Dataplane) vni() uint32 { return d.core.vteps[0].VNI }

// enter enters the port, which from then on uses the queues. free makes room for its carriers if
// they are to be opened.
func (d *Dataplane) enter(free func(family int) error) error {
	if err := d.port.enter(d.vni(), len(d.host.queues()), entrance{free, d.attach}); err != nil {
		return err
	}
	close(d.entered)
	d.log.Info("offloads", describe(d.host, d.port.carriers[0])...)
	return nil
}

// attach joins the queues and the workers of the port.
func (d *Dataplane) attach() {
	queues := d.host.queues()
	for i := range d.core.send {
		d.core.send[i].queue = queues[i]
		d.core.send[i].senders = d.port.newSenders(i)
	}
	for _, w := range d.port.workers {
		out := queues[w.index%len(queues)].newWriter()
		w.attach(d.vni(), d.core.newLane(w.family, w.receiver, out))
	}
}

// succeed takes the place of the devices that have forwarded until now: first the host was made as
// wanted, so that what they no longer get waits for the workers.
func (d *Dataplane) succeed(s successor) error {
	if !isClosed(d.entered) {
		d.port.opening.Lock()
		defer d.port.opening.Unlock()
		if err := s.check(d.port.unbound()); err != nil {
			return err
		}
		d.log.Info("taking the place of a vxlan device", "device", s.predecessors())
		if err := d.enter(s.stop); err != nil {
			return err
		}
	}
	return s.settle(d.wanted.Networks)
}

// syncAll is syncHost, and succeed if there are predecessors.
func (d *Dataplane) syncAll() error {
	_, err := d.syncHost()
	s, ok := d.host.(successor)
	if !ok || len(s.predecessors()) == 0 {
		return err
	}
	if err := d.succeed(s); err != nil {
		err = fmt.Errorf("take the place of %s: %w", strings.Join(s.predecessors(), " and "), err)
		d.report.Publish(dataplane.StateOf(err), err)
		return err
	}
	_, err = d.syncHost()
	return err
}

// describe returns what those of the ends that are describers can do.
func describe(ends ...any) (attrs []any) {
	for _, e := range ends {
		if d, ok := e.(describer); ok {
			attrs = append(attrs, d.describe()...)
		}
	}
	return attrs
}

// VTEPs implements dataplane.Dataplane: one for each of Config.Underlays, in their
// order. A MAC is that of the last Sync, else that of a predecessor, or the derived one.
func (d *Dataplane) VTEPs() []dataplane.VTEP { return d.core.published() }

// Sync implements dataplane.Part. What is forwarded by is replaced first,
// whole, and then the device is made to have the MTU, the addresses and the routes, one
// per overlay network or per subnet of a peer (dataplane/device); what is as wanted already is not written.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	if err := ctx.Err(); err != nil {
		return w, err
	}
	if w.MTU < minMTU || w.MTU > maxPacket {
		return w, fmt.Errorf("sync userspace dataplane: MTU %d is not in %d to %d", w.MTU, minMTU, maxPacket)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return w, fmt.Errorf("sync userspace dataplane: %w", errClosed)
	}
	d.wanted = &w
	d.refused = d.core.sync(w)
	err := d.syncAll()
	return w, errors.Join(d.refused, err)
}

// syncHost makes the host as last wanted, with the peers that the core has taken, and publishes how
// both are. It returns what it changed, and what is wrong with the host.
func (d *Dataplane) syncHost() ([]dataplane.Change, error) {
	w := *d.wanted
	w.Peers = d.core.forwarding.Load().peers
	objects, changes, err := d.host.sync(w)
	all := errors.Join(d.refused, err)
	peers, _ := dataplane.PeerErrors(all)
	objects = append(objects, dataplane.ObjectStatus{Kind: "peer", Wanted: len(d.wanted.Peers), Have: len(d.wanted.Peers) - len(peers)})
	d.report.Publish(dataplane.StateOf(all), all, objects...)
	return changes, err
}

// Prune implements dataplane.Part: Sync has removed what is no longer wanted, for no part
// needs it: forwarding comes after all of them.
func (d *Dataplane) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (d *Dataplane) Status() dataplane.PartStatus { return d.report.Status() }

// Stats implements dataplane.Dataplane. A superpacket is one packet. Packets of the
// last few microseconds may be missing while a worker is busy. What a shared Port
// counts is in its own.
func (d *Dataplane) Stats() (s dataplane.Stats) {
	if !isClosed(d.entered) {
		return s
	}
	d.core.addTo(&s)
	if !d.shared {
		d.port.addTo(&s)
	}
	return s
}

// Close implements dataplane.Part. The device, its addresses and its route stay.
func (d *Dataplane) Close() error {
	d.mu.Lock() // a Sync that goes on must not lose its connection
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if isClosed(d.entered) {
		d.port.exit(d.vni())
	}
	return d.host.close()
}
