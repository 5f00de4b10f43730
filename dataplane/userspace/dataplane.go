package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/overlayd/overlayd/dataplane"
)

var (
	errClosed = errors.New("the dataplane is closed")
	errMTU6   = fmt.Errorf("IPv6 needs %d bytes: the overlay carries IPv4 only", minMTU6)
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

	mu      sync.Mutex // of all below, and of changes to the host
	wanted  *dataplane.Wanted
	refused error // of the last Sync: by peer
	closed  bool
}

// newDataplane joins a host, which is then its own, and a Port. The port is entered last: from
// then on it uses the queues. After an error the host is still the caller's.
func newDataplane(cfg Config, h host, p *Port) (*Dataplane, error) {
	queues := h.queues()
	if err := p.enter(cfg.VNI, len(queues)); err != nil {
		return nil, err
	}
	d := &Dataplane{log: cfg.Log, report: dataplane.NewReporter(cfg.Log, "userspace"), host: h, port: p, shared: cfg.Shared != nil, sources: sourceLog{log: cfg.Log, attrs: cfg.LogAttrs},
		core: newCore(cfg, p.descriptions(), len(queues))}
	for i := range d.core.send {
		d.core.send[i].queue = queues[i]
		d.core.send[i].senders = p.newSenders(i)
	}
	for _, w := range p.workers {
		out := queues[w.index%len(queues)].newWriter()
		w.attach(cfg.VNI, d.core.newLane(w.family, w.receiver, out))
	}
	cfg.Log.Info("offloads", describe(h, p.carriers[0])...)
	return d, nil
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
// order. The MACs are the derived ones until a Sync has others.
func (d *Dataplane) VTEPs() []dataplane.VTEP { return d.core.published() }

// Sync implements dataplane.Part. What is forwarded by is replaced first,
// whole, and then the device is made to have the MTU, the addresses and one route
// per overlay network; what is as wanted already is not written.
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
	_, err := d.syncHost()
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
	d.port.exit(d.core.vteps[0].VNI)
	return d.host.close()
}
