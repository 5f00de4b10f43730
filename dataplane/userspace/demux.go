package userspace

import (
	"context"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// receiveWorker takes what comes to one socket of a Port, on one goroutine, and
// gives each datagram to the lane of its network.
type receiveWorker struct {
	carrier.Counters        // of datagrams that are of no network
	onIdle           func() // flush, made once: it would be an allocation per run
	receiver         carrier.Receiver
	datagram         carrier.Datagram
	touched          []*lane // those to be flushed at the end of the batch

	// mu guards lanes. The worker holds it from the first datagram of a batch to the
	// flush, so whoever has taken a lane away knows that nothing more is written by it. That
	// costs one uncontended lock per system call.
	mu     sync.Mutex
	inside bool // the worker holds mu
	lanes  []vniLane
}

// vniLane is a lane and what it is found by: a search through a few of these, next to
// each other, is faster than a map.
type vniLane struct {
	vni  uint32
	lane *lane
}

// run receives until ctx ends, or the receiver does.
func (w *receiveWorker) run(ctx context.Context, onError onReadError) error {
	if w.onIdle == nil {
		w.onIdle = w.flush
	}
	defer w.flush()
	for {
		if err := w.receiver.Receive(&w.datagram, w.onIdle); err == nil {
			w.receive(&w.datagram)
		} else if ctx.Err() != nil {
			return nil
		} else if err := onError(ctx, err); err != nil {
			return err
		}
	}
}

// receive gives one datagram to the lane of its network.
func (w *receiveWorker) receive(d *carrier.Datagram) {
	if !w.inside {
		w.mu.Lock()
		w.inside = true
	}
	vni, err := encap.ParseVXLAN(d.Buf)
	if err == encap.ErrShort {
		w.drop(d, dataplane.DropBadHeader)
		return
	}
	l := w.lane(vni)
	if err != nil || l == nil {
		w.drop(d, dataplane.DropBadVNI)
		return
	}
	if !l.queued {
		l.queued = true
		w.touched = append(w.touched, l) // there is room for all lanes
	}
	l.receive(d)
}

// drop counts a datagram that is of no network, and shows it.
func (w *receiveWorker) drop(d *carrier.Datagram, why dataplane.Drop) {
	w.Drop(why)
	if t := w.Tap(); t != nil {
		t.Show(capture.Meta{Verdict: capture.Dropped(why), Form: capture.Arrival, Peer: d.From}, d.Buf)
	}
}

// lane returns the lane of a network, or nil.
func (w *receiveWorker) lane(vni uint32) *lane {
	for i := range w.lanes {
		if w.lanes[i].vni == vni {
			return w.lanes[i].lane
		}
	}
	return nil
}

// flush ends a batch, if there is one: it hands the hosts what the lanes have put off.
func (w *receiveWorker) flush() {
	if !w.inside {
		return
	}
	for _, l := range w.touched {
		l.flush()
	}
	w.touched = w.touched[:0]
	w.Publish()
	w.inside = false
	w.mu.Unlock()
}

// attach adds a lane.
func (w *receiveWorker) attach(vni uint32, l *lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes = append(w.lanes, vniLane{vni, l})
	w.touched = make([]*lane, 0, len(w.lanes)) // empty: no batch is under way
}

// detach takes a network's lane away, and returns it; nil: there was none. When it returns nothing uses the lane any more.
func (w *receiveWorker) detach(vni uint32) *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lane(vni)
	w.lanes = slices.DeleteFunc(w.lanes, func(l vniLane) bool { return l.vni == vni })
	return l
}
