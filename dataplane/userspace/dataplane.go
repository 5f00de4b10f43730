package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
)

var errClosed = errors.New("the dataplane is closed")

// Dataplane is the userspace dataplane. It implements dataplane.Dataplane.
type Dataplane struct {
	log     *slog.Logger
	report  *dataplane.Reporter
	core    *core
	host    host
	port    *Port
	shared  bool      // the port, with other networks; else Run runs it
	sources sourceLog // of Run

	entered chan struct{}  // closed once the port was entered: there is traffic from then on
	hide    func()         // then constant: captures see nothing any more
	in      *inherit.Files // what another process handed over; nil: nothing

	mu      sync.Mutex // of all below, and of changes to the host
	wanted  *dataplane.Wanted
	refused error // of the last Sync: by peer
	late    error // of the last Sync: why what is to come here does not, or not all of it
	faults  dataplane.Faults
	closed  bool
}

// newDataplane joins a host, which is then its own, and a Port. The port is entered last, or by
// the first Sync if the host has predecessors or something is inherited. After an error the host is still the caller's.
func newDataplane(cfg Config, h host, p *Port) (*Dataplane, error) {
	d := &Dataplane{
		log: cfg.Log, report: dataplane.NewReporter(cfg.Log, "userspace"), sources: sourceLog{log: cfg.Log, attrs: cfg.LogAttrs},
		core: newCore(cfg, p.descriptions(), len(h.queues())), host: h,
		port: p, shared: cfg.Shared != nil, entered: make(chan struct{}), in: cfg.in,
	}
	d.core.admit = func(sources []netip.Addr) {
		if isClosed(d.entered) {
			p.admit(cfg.VNI, sources)
		}
	}
	if d.in != nil { // what has come meanwhile waits for Resume or the first Sync: there is no route yet
		return d, nil
	}
	if s, ok := h.(successor); ok && len(s.predecessors()) > 0 {
		return d, nil
	}
	return d, d.enter(nil)
}

// vni is that of the network.
func (d *Dataplane) vni() uint32 { return d.core.vteps[0].VNI }

// enter enters the port unless that was done; from then on it uses the queues. free makes room for its carriers if
// they are to be opened.
func (d *Dataplane) enter(free func(family int) error) error {
	if isClosed(d.entered) {
		return nil
	}
	if err := d.port.enter(d.vni(), len(d.host.queues()), entrance{free, d.attach}); err != nil {
		return err
	}
	close(d.entered)
	if d.wanted != nil { // it was synced before
		d.port.admit(d.vni(), d.core.forwarding.Load().outerSources())
	}
	d.log.Info("offloads", describe(d.host, d.port.carriers[0])...)
	return nil
}

// attach joins the queues and the workers of the port.
func (d *Dataplane) attach() {
	queues := d.host.queues()
	for i := range d.core.send {
		d.core.send[i].queue = queues[i]
		d.core.send[i].senders = d.port.newSenders()
	}
	for _, w := range d.port.workers {
		out := queues[w.index%len(queues)].newWriter()
		w.attach(d.vni(), d.core.newLane(w.family, w.receiver, out))
	}
	d.hide = d.core.show()
}

// describe returns what those of the ends that are Describers can do.
func describe(ends ...any) (attrs []any) {
	for _, e := range ends {
		if d, ok := e.(carrier.Describer); ok {
			attrs = append(attrs, d.Describe()...)
		}
	}
	return attrs
}

// VTEPs implements dataplane.Dataplane: one for each of Config.Underlays, in their
// order. A MAC is that of the last Sync, else that of a predecessor, or the derived one.
func (d *Dataplane) VTEPs() []dataplane.VTEP { return d.core.published() }

// Sync implements dataplane.Part. The forwarding is replaced first, as a whole. Then the device
// gets the MTU, the addresses and the routes, one per overlay network or per subnet of a
// peer (dataplane/device). What is as wanted already is not written.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	if err := ctx.Err(); err != nil {
		return w, err
	}
	if w.MTU < carrier.MinMTU || w.MTU > carrier.MaxPacket {
		return w, fmt.Errorf("sync userspace dataplane: MTU %d is not in %d to %d", w.MTU, carrier.MinMTU, carrier.MaxPacket)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return w, fmt.Errorf("sync userspace dataplane: %w", errClosed)
	}
	d.wanted = &w
	d.refused = d.core.sync(w)
	err := errors.Join(d.refused, d.syncAll())
	d.faults.Know(err)
	return w, err
}

// syncHost makes the host as last wanted, with the peers that the core has taken, and publishes how
// both are. It returns what it changed, and what is wrong with the host.
func (d *Dataplane) syncHost() ([]dataplane.Change, error) {
	w := *d.wanted
	w.Peers = d.core.forwarding.Load().peers
	objects, changes, err := d.host.sync(w)
	kept, repaired := d.port.objects()
	peers, _ := dataplane.PeerErrors(errors.Join(d.refused, err))
	objects = append(objects, dataplane.ObjectStatus{Kind: "peer", Wanted: len(d.wanted.Peers), Have: len(d.wanted.Peers) - len(peers)})
	objects, changes = append(objects, kept...), append(changes, repaired...)
	d.publish(err, objects...)
	return changes, err
}

// publish makes the status: host is what is wrong with the host. Without objects their counts stay.
func (d *Dataplane) publish(host error, objects ...dataplane.ObjectStatus) {
	all := errors.Join(d.refused, d.late, host)
	d.report.Publish(dataplane.StateOf(all), all, objects...)
}

// Prune implements dataplane.Part. Sync has removed what is no longer wanted: forwarding comes after
// all other parts, so none of them needs it.
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

// Traffic implements dataplane.PeerCounter.
func (d *Dataplane) Traffic() map[netip.Addr]dataplane.Traffic {
	if !isClosed(d.entered) {
		return nil
	}
	return d.core.traffic()
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
		d.hide()
	}
	if !d.shared && d.port.runs.CompareAndSwap(false, true) {
		d.port.end()
	}
	d.in.Close()
	return d.host.close()
}
