package probe

import (
	"context"
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// Question is what Ask is to find out about one peer. All fields must be set unless their comment says otherwise.
type Question struct {
	Subnet   netip.Prefix
	VTEP     netip.Addr
	From     netip.Addr // own address in the overlay, of the family of Subnet; not valid: the kernel chooses
	Local    netip.Addr // own address in the underlay, of the family of VTEP; not valid: the kernel chooses
	MTU      int        // of the overlay, in bytes
	UnderMTU int        // of the underlay, in bytes
	Tunnel   bool       // see Config
	Port     uint16     // UDP port of VXLAN
	Count    int        // requests of each kind
}

// Line is what became of one kind of request.
type Line struct {
	Overlay bool       // through the overlay, and not to the underlay address
	Hop     bool       // to an address behind the peer, which says that the TTL is used up
	To      netip.Addr // not valid: the subnet has no such address
	Size    int        // of the IP packet, in bytes
	Sent    int
	RTTs    []time.Duration // of those that were answered
	Err     error           // why the last one could not be sent
	PathMTU int             // what a router says that the path takes, in bytes; 0: nothing
}

// Result is what Ask has found out. The lines are small and full packets through the overlay, one to behind the peer, and
// small and full packets to the underlay address.
type Result struct {
	Lines []Line
	State status.ProbeState
	Reason,
	Err,
	Fix string // as in status.Probe
}

// underFull is a kind that only Ask uses: the underlay address with packets of the underlay's MTU.
const underFull = kinds

// asker sends the requests of one Ask.
type asker struct {
	q          Question
	peer       *peer
	transports map[bool]transport // by whether it is IPv6's
	answers    chan answer
	flights    []flight
	lines      [kinds + 1]Line
}

// Ask asks one peer and waits for the answers.
func Ask(ctx context.Context, q Question) (*Result, error) { return ask(ctx, q, openSocket) }

func ask(ctx context.Context, q Question, open func(v6 bool) (transport, error)) (*Result, error) {
	a := &asker{q: q, peer: newPeer(q.Subnet, q.VTEP, q.Tunnel, 0, 0), transports: map[bool]transport{}, answers: make(chan answer, 64)}
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, to := range []netip.Addr{a.peer.target(echo), q.VTEP} {
		if a.transports[to.Is6()] != nil {
			continue
		}
		t, err := open(to.Is6())
		if err != nil {
			return nil, err
		}
		defer t.close()
		a.transports[to.Is6()] = t
		wait.Go(func() { a.receive(t) })
	}
	for k := range a.lines {
		a.lines[k] = a.line(kind(k))
	}
	for range q.Count {
		if err := a.turn(ctx); err != nil {
			return nil, err
		}
	}
	return a.result(), nil
}

// receive hands on answers; those that nobody has time for are lost.
func (a *asker) receive(t transport) {
	for {
		got, err := t.receive()
		if err != nil {
			return
		}
		got.data = slices.Clone(got.data)
		select {
		case a.answers <- got:
		default:
		}
	}
}

// line returns the line of a kind, without anything sent yet.
func (a *asker) line(k kind) Line {
	l := Line{Overlay: k < under, Hop: k == hop, To: a.q.VTEP}
	if k < under {
		l.To = a.peer.target(k)
	}
	if l.To.IsValid() {
		l.Size = smallSize(l.To)
	}
	switch k {
	case full:
		l.Size = a.q.MTU
	case underFull:
		l.Size = a.q.UnderMTU
	}
	return l
}

// turn sends one request of each kind, and waits until all are answered or time is up.
func (a *asker) turn(ctx context.Context) error {
	began, open := time.Now(), 0
	for k := range a.lines {
		if a.send(kind(k)) {
			open++
		}
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for open > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return nil
		case got := <-a.answers:
			if a.take(&got, time.Since(began)) {
				open--
			}
		}
	}
	return nil
}

// send sends a request, and reports whether there may be an answer.
func (a *asker) send(k kind) bool {
	l := &a.lines[k]
	if !l.To.IsValid() {
		return false
	}
	f := flight{peer: a.peer, to: l.To, seq: uint16(len(a.flights)), kind: k}
	rand.Read(f.cookie[:])
	r := &request{to: f.to, seq: f.seq, cookie: f.cookie, size: l.Size, from: a.q.Local}
	if l.Overlay && a.q.Tunnel {
		r.from = a.q.From
	}
	if k == hop {
		r.ttl = 1
	}
	f.size = r.size - headers(f.to) + icmpHeader
	f.sum, l.Err = a.transports[f.to.Is6()].send(r)
	l.Sent++
	a.flights = append(a.flights, f)
	return l.Err == nil
}

// take notes an answer, and reports whether nothing more will come for its request.
func (a *asker) take(got *answer, rtt time.Duration) bool {
	if got.outcome == junk || int(got.seq) >= len(a.flights) {
		return false
	}
	f := &a.flights[got.seq]
	if f.done || !f.matches(got) {
		return false
	}
	l := &a.lines[f.kind]
	switch {
	case got.outcome == tooBig:
		l.PathMTU = got.mtu
	case got.outcome == unreachable && f.kind != hop:
		a.peer.checks[under].refused = true
	default:
		l.RTTs = append(l.RTTs, rtt)
	}
	f.done = true
	return true
}

// result judges the answers as a Prober does.
func (a *asker) result() *Result {
	for k := range a.peer.checks {
		c, l := &a.peer.checks[k], &a.lines[k]
		c.unsent = unsentFor(l.Err)
		if c.ever = len(l.RTTs) > 0; c.ever {
			c.refused, c.unsent = false, nil
			if kind(k) != under {
				a.peer.silent = false
			}
		} else if kind(k) != hop {
			c.losses = named
		}
	}
	if !a.peer.checks[echo].ever { // no echo is answered, of whatever size
		a.peer.checks[full].losses = 0
	}
	if !a.peer.silent { // a hop is an answer too
		a.peer.checks[echo].losses, a.peer.heard = 0, 1
	}
	a.peer.pathMTU = int32(a.lines[full].PathMTU)
	a.peer.judge(0)
	r := &Result{Lines: a.lines[:], State: a.peer.state, Reason: a.peer.reason}
	r.Err, r.Fix = a.peer.explain(&facts{Tunnel: a.q.Tunnel, Port: a.q.Port, MTU: a.q.MTU})
	return r
}
