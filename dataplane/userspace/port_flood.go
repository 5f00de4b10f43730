package userspace

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	floodLook  = 50 * time.Millisecond
	floodBegin = 100 // unwanted datagrams between two looks
	floodEnd   = 10 * time.Second
	// maxFilterVNIs bounds the length of a filter.
	maxFilterVNIs = 256
)

// flood makes the carriers drop unwanted datagrams before they are queued, for as long as many of them come. Otherwise they
// would take the place of what peers send. Without a flood all datagrams are received, and the unwanted ones counted and
// logged by reason. In a flood this is done with a sample.
type flood struct {
	log     *slog.Logger
	notices pace.Notices
	begin   uint64 // floodBegin; tests change it before Run

	mu     sync.Mutex              // of all below
	wanted map[uint32][]netip.Addr // by VNI: the outer sources to accept, sorted; nil: any
	up     bool
	seen   uint64    // unwanted datagrams at the last look
	gone   uint64    // those at networks that have left
	last   time.Time // when many of them came
}

// admit lets datagrams of a network from these outer sources pass; nil: from any source. They pass when it returns.
func (p *Port) admit(vni uint32, sources []netip.Addr) {
	f := &p.flood
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wanted == nil {
		f.wanted = map[uint32][]netip.Addr{}
	}
	f.wanted[vni] = sources
	p.setFilters()
}

// dismiss removes a network, and its lanes. No look comes in between: what the lanes have counted would be missing, as if less had come.
func (p *Port) dismiss(vni uint32) {
	f := &p.flood
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range p.workers {
		f.gone += w.detach(vni).unwanted()
	}
	delete(f.wanted, vni)
	p.setFilters()
}

// watchFlood looks for floods until ctx ends.
func (p *Port) watchFlood(ctx context.Context) {
	defer p.look(time.Now(), true)
	for pace.Sleep(ctx, floodLook, nil) {
		p.look(time.Now(), false)
	}
}

// look starts or ends the filter.
func (p *Port) look(now time.Time, end bool) {
	f := &p.flood
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := p.unwanted()
	n := seen - f.seen
	f.seen = seen
	if n >= f.begin {
		f.last = now
	}
	was := f.up
	f.up = !end && (n >= f.begin || f.up && now.Sub(f.last) < floodEnd)
	if f.up && !was {
		if due, _ := f.notices.Due(now, pace.Notice{Key: "flood"}); len(due) > 0 {
			f.log.Warn("flood of datagrams from no peer or for no network: most are dropped before they are queued", "per_second", n*uint64(time.Second/floodLook),
				"fix", "the counters and lines of unknown_vtep, bad_vni and bad_header tell where samples come from")
		}
	}
	p.setFilters() // without a flood, too: a carrier that could not remove its filter tries again
}

// unwanted counts the datagrams that no network could have wanted. It never becomes less.
func (p *Port) unwanted() (n uint64) {
	n = p.flood.gone
	for _, w := range p.workers {
		n += w.Dropped(dataplane.DropBadHeader) + w.Dropped(dataplane.DropBadVNI)
		w.mu.Lock()
		for _, l := range w.lanes {
			n += l.lane.unwanted()
		}
		w.mu.Unlock()
	}
	for _, c := range p.carriers {
		if s, ok := c.(carrier.Shield); ok {
			n += s.Filtered()
		}
	}
	return n
}

// unwanted counts those that came to a lane; nil: none.
func (l *lane) unwanted() uint64 {
	if l == nil {
		return 0
	}
	return l.Dropped(dataplane.DropUnknownVTEP) + l.Dropped(dataplane.DropBadHeader)
}

// setFilters gives the carriers their filters, or removes them.
func (p *Port) setFilters() {
	if !p.isOpen() {
		return
	}
	for i, c := range p.carriers {
		s, ok := c.(carrier.Shield)
		if !ok {
			continue
		}
		if err := s.SetFilter(p.flood.filter(p.openers[i].Family)); err != nil {
			if due, _ := p.flood.notices.Due(time.Now(), pace.Notice{Key: "filter", Text: err.Error()}); len(due) > 0 {
				p.log.Warn("a flood is not dropped before it is queued", "err", err)
			}
		}
	}
}

// filter returns what a carrier of that family is to accept; nil: everything.
func (f *flood) filter(family int) *carrier.Filter {
	if !f.up || len(f.wanted) > maxFilterVNIs {
		return nil
	}
	out := &carrier.Filter{VNIs: slices.Sorted(maps.Keys(f.wanted)), Sources: []netip.Addr{}}
	for _, sources := range f.wanted {
		if sources == nil {
			out.Sources = nil
			return out
		}
		for _, s := range sources {
			if carrier.FamilyOf(s) == family {
				out.Sources = append(out.Sources, s)
			}
		}
	}
	slices.SortFunc(out.Sources, netip.Addr.Compare)
	if out.Sources = slices.Compact(out.Sources); len(out.Sources) > carrier.MaxFilterSources {
		out.Sources = nil
	}
	return out
}
