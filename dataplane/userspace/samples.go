package userspace

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

// SourceError says why packets from one outer source are dropped.
type SourceError struct {
	Reason dataplane.Drop // DropUnknownVTEP or DropBadSource
	Outer  netip.Addr     // source of the datagram; not valid if it is a packet of this host
	Inner  netip.Addr     // source of the packet in it; not valid if it has no IP header
	// Peer is the peer whose subnet holds Inner, and Sender the peer that has the address Outer: their
	// published addresses, not valid if no peer does.
	Peer, Sender netip.Addr
}

// Error implements error.
func (e *SourceError) Error() string {
	switch {
	case !e.Outer.IsValid() && e.Peer.IsValid():
		return fmt.Sprintf("this host sends packets with source %s, which is in a subnet of peer %s", e.Inner, e.Peer)
	case !e.Outer.IsValid():
		return fmt.Sprintf("this host sends packets with source %s, which is in no subnet of it", e.Inner)
	case e.Sender.IsValid() && e.Peer.IsValid():
		return fmt.Sprintf("peer %s sends packets with source %s, which is in a subnet of peer %s", e.Sender, e.Inner, e.Peer)
	case e.Sender.IsValid():
		return fmt.Sprintf("peer %s sends packets with source %s, which is in no peer's subnet", e.Sender, e.Inner)
	case e.Peer.IsValid():
		return fmt.Sprintf("packets of peer %s come from %s: behind a NAT? Its node has to say that this is its source", e.Peer, e.Outer)
	case e.Inner.IsValid():
		return fmt.Sprintf("packets come from %s, which is not a peer, and their source %s is in no peer's subnet", e.Outer, e.Inner)
	}
	return fmt.Sprintf("packets come from %s, which is not a peer", e.Outer)
}

// source is the source that the packets are dropped for.
func (e *SourceError) source() netip.Addr {
	if e.Outer.IsValid() {
		return e.Outer
	}
	return e.Inner
}

// maxSamples is how many sources a worker notes between two looks at them.
const maxSamples = 8

// samples are sources whose packets a worker has dropped. The worker's goroutine adds, one other takes.
// Both only read entries below n, and only the worker writes those from n on.
type samples struct {
	n    atomic.Int32
	list [maxSamples]SourceError
}

// lacks reports whether a source is not noted yet, and there is room for it.
func (s *samples) lacks(source netip.Addr, why dataplane.Drop) bool {
	n := s.n.Load()
	for i := range n {
		if s.list[i].source() == source && s.list[i].Reason == why {
			return false
		}
	}
	return n < maxSamples
}

// add notes a source that is lacking.
func (s *samples) add(f *forwarding, e SourceError) {
	e.judge(f)
	n := s.n.Load()
	s.list[n] = e
	s.n.Store(n + 1)
}

// take returns what was noted since the last take, and perhaps some of what was before.
func (s *samples) take() (taken []SourceError) {
	n := s.n.Load()
	if n == 0 {
		return nil
	}
	taken = append(taken, s.list[:n]...)
	s.n.CompareAndSwap(n, 0) // if the lane has added one, the next take has all of them again
	return taken
}

// dropSource notes what is dropped for its source, as far as there is room.
func (l *lane) dropSource(f *forwarding, d *carrier.Datagram, why dataplane.Drop) (dataplane.Drop, bool) {
	if l.samples.lacks(d.From, why) {
		e := SourceError{Reason: why, Outer: d.From}
		if len(d.Buf) > encap.HeaderLen && encap.ParseIP(d.Buf[encap.HeaderLen:], &l.ip) == nil {
			e.Inner = l.ip.Src
		}
		l.samples.add(f, e)
	}
	return why, false
}

// dropSource drops a packet of this host that must not have that source, and notes it as far as there is room.
func (w *sendWorker) dropSource(f *forwarding, ip []byte, e *carrier.Entry, src netip.Addr) {
	w.DropPacket(ip, e.Peer.Addr, dataplane.DropBadSource)
	if w.samples.lacks(src, dataplane.DropBadSource) {
		w.samples.add(f, SourceError{Reason: dataplane.DropBadSource, Inner: src})
	}
}

// judge fills in which peers the sources belong to, and reports whether packets from them are
// still dropped.
func (e *SourceError) judge(f *forwarding) (dropped bool) {
	e.Peer, e.Sender = netip.Addr{}, netip.Addr{}
	var inner *carrier.Entry
	if e.Inner.IsValid() {
		inner = f.subnets.Lookup(e.Inner)
	}
	if inner != nil {
		e.Peer = inner.Peer.Addr
	}
	if !e.Outer.IsValid() {
		return !f.maySend(e.Inner)
	}
	sender := f.vteps.Lookup(e.Outer)
	if sender != nil {
		e.Sender = sender.Peer.Addr
	} else if !f.isAnyPeer(e.Outer) {
		return true
	}
	return !e.Inner.IsValid() || f.sender(sender, e.Inner) == nil && f.otherSender(e.Outer, e.Inner) == nil
}

// The lines about dropped sources are bounded: nobody can fill the log by sending from ever new sources.
const (
	sourceLines = 20
	sourceSpan  = 10 * time.Minute
)

// sourceLog logs dropped sources, each once in a while. It is for one goroutine.
type sourceLog struct {
	log     *slog.Logger
	attrs   func(error) []any
	notices pace.Notices
	began   time.Time // of the span
	lines   int       // in it
	pending []SourceError
}

// report logs what the workers of c had dropped by the last report and would drop still: packets of a new peer
// may arrive before its lease does.
func (s *sourceLog) report(now time.Time, c *core) {
	f := c.forwarding.Load()
	if now.Sub(s.began) >= sourceSpan {
		s.began, s.lines = now, 0
	}
	for i := range s.pending {
		if s.pending[i].judge(f) {
			s.line(now, &s.pending[i])
		}
	}
	s.pending = s.pending[:0]
	for _, l := range c.lanes {
		s.pending = append(s.pending, l.samples.take()...)
	}
	for i := range c.send {
		s.pending = append(s.pending, c.send[i].samples.take()...)
	}
}

func (s *sourceLog) line(now time.Time, e *SourceError) {
	if s.lines > sourceLines {
		return
	}
	if due, _ := s.notices.Due(now, pace.Notice{Key: e.source().String(), Text: e.Reason.String()}); len(due) == 0 {
		return
	}
	if s.lines++; s.lines > sourceLines {
		s.log.Warn("packets dropped from more sources, which are not logged for now", "span", sourceSpan)
		return
	}
	attrs := []any{"err", e}
	if s.attrs != nil {
		attrs = s.attrs(e)
	}
	s.log.Warn("packets dropped", append([]any{"reason", e.Reason, "source", e.source()}, attrs...)...)
}
