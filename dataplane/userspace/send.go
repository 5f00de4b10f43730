package userspace

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// sendWorker carries packets from one queue to the underlay, on one goroutine.
type sendWorker struct {
	carrier.Counters
	onIdle     func() // flush, made once: it would be an allocation per run
	forwarding *atomic.Pointer[forwarding]
	queue      queue
	senders    []carrier.Sender // one for each carrier
	answer     answerer
	samples    samples // of what was dropped for its source
}

// run sends until ctx ends, or the queue does. The queue calls flush, within Read, when it has
// no more packets.
func (w *sendWorker) run(ctx context.Context, onError onReadError) error {
	if w.onIdle == nil {
		w.onIdle = w.flush
	}
	defer w.flush()
	for {
		p, err := w.queue.Read(w.onIdle)
		if err == nil {
			w.send(p)
		} else if ctx.Err() != nil {
			return nil
		} else if err := onError(ctx, err); err != nil {
			return err
		}
	}
}

// flush sends what the senders have put off.
func (w *sendWorker) flush() {
	for _, s := range w.senders {
		s.Flush(&w.Counters)
	}
	w.Publish()
}

// send forwards one packet of the host: destination, route, source, header, underlay.
// Multicast and broadcast have no route. The TTL is left alone: the hosts' own
// forwarding on either side counts it down, as with the kernel's vxlan device.
func (w *sendWorker) send(p *carrier.Packet) {
	f, ip := w.forwarding.Load(), p.IP()
	var e *carrier.Entry
	etherType := uint16(encap.EtherTypeIPv4)
	if src, dst, ok := encap.Ends4(ip); ok && f.own4.holds(src) {
		e = f.subnets.Lookup4(dst)
	}
	if e == nil {
		if e, etherType = w.route(f, ip); e == nil {
			return
		}
	}
	fragment := false
	if mtu := e.MTU(); mtu != 0 && p.WireLen(ip) > mtu {
		if fragment = p.Fragmentable(ip); !fragment {
			w.tooBig(p, e, mtu)
			return
		}
	}
	e.Template.Put(p.Datagram(), etherType)
	if t := w.Tap(); t != nil {
		t.Show(capture.Meta{Verdict: capture.Sent, Form: capture.Datagram, Peer: e.Peer.Addr}.With(&p.Offload), p.Datagram())
	}
	w.senders[e.Carrier].Send(p, e, fragment, &w.Counters)
}

// route returns the entry by which a packet leaves, and its EtherType. If no entry has the destination, or if this host may
// not send from the source, route drops the packet and returns nil.
func (w *sendWorker) route(f *forwarding, ip []byte) (*carrier.Entry, uint16) {
	dst, etherType, ok := encap.Destination(ip)
	if !ok {
		w.DropPacket(ip, netip.Addr{}, dataplane.DropBadHeader)
		return nil, 0
	}
	e := f.subnets.Lookup(dst)
	if e == nil {
		w.DropPacket(ip, netip.Addr{}, dataplane.DropNoRoute)
		return nil, 0
	}
	if src := encap.Source(ip, etherType); !f.maySend(src) {
		w.dropSource(f, ip, e, src)
		return nil, 0
	}
	return e, etherType
}
