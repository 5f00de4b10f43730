package controller

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/encap"
)

// peerLog logs each peer that comes, changes or goes: a line for each subnet. If there are too many, the rest is
// a number, which is logged when time is over.
type peerLog struct {
	log   *slog.Logger
	peers []dataplane.Peer // as last logged
	lines pace.Lines
	more  [numPeerEvents]int // not logged one by one
	at    time.Time          // when to log more; zero: there is nothing
}

// peerEvent is what happens to a peer.
type peerEvent int

const (
	peerAdded peerEvent = iota
	peerChanged
	peerRemoved
	numPeerEvents = iota
)

// String returns the event as the log has it.
func (e peerEvent) String() string { return [numPeerEvents]string{"added", "changed", "removed"}[e] }

// place is where a subnet is.
type place struct {
	subnet netip.Prefix
	vtep   dataplane.VTEP
	source netip.Addr
}

// note logs what makes peers of those that were there before.
func (p *peerLog) note(ctx context.Context, now time.Time, peers []dataplane.Peer) {
	gone, come := diffPeers(p.peers, peers)
	p.peers = peers
	if len(gone)+len(come) == 0 {
		return
	}
	was := make(map[netip.Prefix]place, len(gone))
	for _, g := range gone {
		was[g.subnet] = g
	}
	for _, c := range come {
		before, changed := was[c.subnet]
		if !changed {
			p.line(ctx, now, peerAdded, c)
			continue
		}
		p.line(ctx, now, peerChanged, c, c.changes(before)...)
		delete(was, c.subnet)
	}
	for _, g := range gone {
		if _, removed := was[g.subnet]; removed {
			p.line(ctx, now, peerRemoved, g)
		}
	}
}

// changes lists what of a place was another.
func (c place) changes(was place) (attrs []any) {
	if was.vtep.Addr != c.vtep.Addr {
		attrs = append(attrs, "was_vtep", was.vtep.Addr)
	}
	if was.vtep.MAC != c.vtep.MAC {
		attrs = append(attrs, "was_mac", was.vtep.MAC)
	}
	if was.source != c.source {
		attrs = append(attrs, "source", c.source, "was_source", was.source)
	}
	return attrs
}

func (p *peerLog) line(ctx context.Context, now time.Time, e peerEvent, at place, attrs ...any) {
	if !p.lines.Due(now) {
		p.more[e]++
		p.at = p.lines.Next()
		return
	}
	all := []any{"subnet", at.subnet, "vtep", at.vtep.Addr}
	if at.vtep.MAC != (encap.MAC{}) { // host-gw has none
		all = append(all, "mac", at.vtep.MAC)
	}
	p.log.InfoContext(ctx, "peer "+e.String(), append(all, attrs...)...)
}

// rest logs how many lines there would have been.
func (p *peerLog) rest(ctx context.Context) {
	var attrs []any
	for e, n := range p.more {
		if n > 0 {
			attrs = append(attrs, peerEvent(e).String(), n)
		}
	}
	p.log.InfoContext(ctx, "more peers than are logged one by one", attrs...)
	p.more, p.at = [numPeerEvents]int{}, time.Time{}
}

// diffPeers returns the places that only one of two lists of peers has. Both are sorted as RIB.Peers returns them.
func diffPeers(was, is []dataplane.Peer) (gone, come []place) {
	for len(was) > 0 || len(is) > 0 {
		switch order := comparePeers(was, is); {
		case order < 0:
			gone, was = appendPlaces(gone, &was[0], nil), was[1:]
		case order > 0:
			come, is = appendPlaces(come, &is[0], nil), is[1:]
		default:
			gone, come = appendPlaces(gone, &was[0], &is[0]), appendPlaces(come, &is[0], &was[0])
			was, is = was[1:], is[1:]
		}
	}
	return gone, come
}

// comparePeers compares the first peers of two lists, one of which may be empty, by their VTEPs.
func comparePeers(was, is []dataplane.Peer) int {
	switch {
	case len(is) == 0:
		return -1
	case len(was) == 0:
		return 1
	}
	return cmp.Or(was[0].Addr.Compare(is[0].Addr), slices.Compare(was[0].MAC[:], is[0].MAC[:]))
}

// appendPlaces adds the places of p that other, which has the same VTEP or is nil, does not have.
func appendPlaces(places []place, p, other *dataplane.Peer) []place {
	for _, subnet := range p.Subnets {
		if other == nil || other.Source != p.Source || other.VTEP != p.VTEP || !slices.Contains(other.Subnets, subnet) {
			places = append(places, place{subnet, p.VTEP, p.Source})
		}
	}
	return places
}
