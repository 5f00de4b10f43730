package probe

import "github.com/overlayd/overlayd/cmd/internal/status"

// Status returns what is known now.
func (p *Prober) Status() *status.Probes {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := status.Probes{IntervalMS: p.cfg.Interval.Milliseconds(), RoundMS: p.round.Milliseconds(), Counts: p.counts}
	if p.noSocket != nil {
		s.Err, s.Fix = p.noSocket.Error(), fixOf(p.noSocket)
	}
	if len(p.peers) == 0 {
		return &s
	}
	f := p.facts()
	s.Peers = make([]status.Probe, 0, len(p.peers))
	for _, q := range p.peers {
		s.Peers = append(s.Peers, p.report(q, f))
	}
	return &s
}

func (p *Prober) report(q *peer, f *facts) status.Probe {
	r := status.Probe{Subnet: q.subnet, VTEP: q.vtep, State: q.state, Reason: q.reason, Since: p.start.Add(q.since),
		RTTMicros: q.rtt.Microseconds(), SmoothMicros: q.smooth.Microseconds(), MTU: q.mtu(), PathMTU: int(q.pathMTU), Forwards: q.forwards()}
	r.Err, r.Fix = q.explain(f)
	r.Lost, r.Tries = q.loss()
	if q.heard > 0 {
		r.Last = p.start.Add(q.heard)
	}
	return r
}

// Counts returns what was counted so far.
func (p *Prober) Counts() status.ProbeCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}
