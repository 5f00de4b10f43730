package probe

import (
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// take takes an answer. It reports whether it was one, so that something may be due now.
func (p *Prober) take(a *answer) bool {
	if a.outcome == junk {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flight(a.seq)
	if !f.matches(a) {
		p.counts.Forged++
		return false
	}
	if f.done || f.peer.gone() { // done: the network has doubled the answer
		return false
	}
	q, now := f.peer, p.now()
	switch {
	case a.outcome == tooBig:
		q.pathMTU = int32(a.mtu)
	case a.outcome == unreachable && f.kind == under:
		q.checks[under].refused = true
	default:
		f.open, f.done = false, true
		p.counts.Answered++
		p.measure(f, now)
		q.answered(f, now, &p.rules)
		if a.outcome == reply && f.kind == hop {
			q.isLocal()
		}
	}
	p.judged(q, now)
	return true
}

// measure notes the round trip of an echo. A hop stands in for it if the peer answers only that.
func (p *Prober) measure(f *flight, now time.Duration) {
	if f.kind != echo && (f.kind != hop || f.peer.checks[echo].ever) {
		return
	}
	rtt := now - f.sent
	f.peer.measure(rtt)
	bounds := status.RTTBounds()
	i, _ := slices.BinarySearch(bounds[:], rtt)
	p.counts.RTTs[i]++
	p.counts.RTTMicros += uint64(rtt.Microseconds())
}

// expire counts the probes as lost that had no answer in time.
func (p *Prober) expire() {
	for now := p.now(); p.oldest != p.next; p.oldest++ {
		f := p.flight(p.oldest)
		if !f.open {
			continue
		}
		if now < f.sent+p.rules.patience {
			return
		}
		if f.open = false; f.peer.gone() {
			continue
		}
		if f.peer.checks[f.kind].unsent == nil {
			p.counts.Lost++
		}
		f.peer.lost(f, now, &p.rules)
		p.judged(f.peer, now)
	}
}

// judged notes what is known of a peer by now.
func (p *Prober) judged(q *peer, now time.Duration) {
	if since := q.since; q.judge(now) {
		p.counts.Changes++
		p.news.add(p.cfg.Log, q, now-since, p.facts())
	}
	p.queue.fix(q)
}
