package userspace

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
)

// core is what forwards, between the queues of a host and the carriers of a Port.
type core struct {
	locals     [carrier.Families]local // of whoever calls sync
	check      dataplane.SourceCheck
	anyFrom    []netip.Prefix   // see Config.AnyPeerFrom
	vteps      []dataplane.VTEP // as they were made; see published
	forwarding atomic.Pointer[forwarding]
	admit      func(sources []netip.Addr) // has the port take what comes from these; nil: from any
	captures   *capture.Hub
	send       []sendWorker
	lanes      []*lane // one for each receiveWorker of the Port
}

// newCore makes n sendWorkers, without what they work on.
func newCore(cfg Config, carriers []carrier.Description, n int) *core {
	c := &core{locals: newLocals(cfg, carriers), check: cfg.sourceCheck(), anyFrom: slices.Clone(cfg.AnyPeerFrom), captures: cfg.Captures, send: make([]sendWorker, n)}
	for _, u := range cfg.Underlays {
		c.vteps = append(c.vteps, dataplane.VTEP{Addr: u.Public, MAC: c.locals[carrier.FamilyOf(u.Local)].mac, VNI: cfg.VNI})
	}
	c.forwarding.Store(&forwarding{macs: macsOf(&c.locals)})
	for i := range n {
		c.send[i].forwarding = &c.forwarding
		c.send[i].answer = newAnswerer(maxHeadroom(carriers))
	}
	return c
}

// newLane makes the lane of a network for what comes by a receiver of that family.
func (c *core) newLane(family int, r carrier.Receiver, w writer) *lane {
	l := &lane{forwarding: &c.forwarding, writer: w, family: family}
	l.guesser, _ = r.(carrier.Guesser)
	c.lanes = append(c.lanes, l)
	return l
}

// published returns the VTEPs with the MACs that they have now.
func (c *core) published() []dataplane.VTEP {
	macs, out := c.forwarding.Load().macs, slices.Clone(c.vteps)
	for i := range out {
		out[i].MAC = macs[carrier.FamilyOf(out[i].Addr)]
	}
	return out
}

// sync makes w what packets are forwarded by.
func (c *core) sync(w dataplane.Wanted) error {
	for family := range c.locals {
		if m, ok := w.MAC(family == carrier.Family6); ok {
			c.locals[family].mac = m
		}
	}
	f, err := newForwarding(c.forwarding.Load(), &c.locals, w)
	f.set(c.check, c.anyFrom)
	if c.admit != nil {
		c.admit(f.outerSources())
	}
	c.forwarding.Store(f)
	return err
}

// show lets captures see what the workers do, until leave is called.
func (c *core) show() (leave func()) {
	var points []*capture.Point
	for i := range c.send {
		points = append(points, &c.send[i].Point)
	}
	for _, l := range c.lanes {
		points = append(points, &l.Point)
	}
	return c.captures.Join(c.vteps[0].VNI, points...)
}

// traffic returns what was counted for each peer.
func (c *core) traffic() map[netip.Addr]dataplane.Traffic {
	f := c.forwarding.Load()
	all := make(map[netip.Addr]dataplane.Traffic, len(f.entries))
	for i := range f.entries {
		p := f.entries[i].Peer
		all[p.Addr] = p.Traffic() // of all its leases
	}
	return all
}

// addTo adds the counters of all workers to s.
func (c *core) addTo(s *dataplane.Stats) {
	for i := range c.send {
		c.send[i].AddTo(&s.TxPackets, &s.TxBytes, s)
		s.TxWriteErrors += c.send[i].Dropped(dataplane.DropWriteError)
	}
	for _, l := range c.lanes {
		l.AddTo(&s.RxPackets, &s.RxBytes, s)
	}
}
