package probe

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// The rate of all probes of a process: how many a second, and how many at once.
const (
	perSecond = 200
	burst     = 10
)

// NewLimit returns what bounds the rate of all probers of a process together.
func NewLimit() *rate.Limiter { return rate.NewLimiter(perSecond, burst) }

// Config is what a Prober is told. All fields must be set unless their comment says otherwise.
type Config struct {
	Log      *slog.Logger
	Interval time.Duration             // between two echoes to one peer
	Limit    *rate.Limiter             // as NewLimit returns it; shared with others
	Status   func() *controller.Status // what this node is in the overlay, and its peers; it may be called at any time
	Local    []netip.Addr              // underlay addresses of this host, one per family
	Tunnel   bool                      // peers are reached through VXLAN; without, as with host-gw, no host has the base address of its subnet
	Port     uint16                    // UDP port of VXLAN
	Heard    map[netip.Prefix]bool     // as Heard of the Prober of the session before returned it; nil: there was no such session
}

// transport sends requests of one family, and receives answers.
type transport interface {
	// send sends a request and returns the checksum by which an error may quote it.
	send(r *request) (sum uint16, err error)
	// receive waits for an answer, which is valid until the next call. An error means that the transport is closed.
	receive() (answer, error)
	// close ends receive. It is called once.
	close()
}

// rules are what all peers of a Prober share.
type rules struct {
	interval time.Duration // between two echoes
	extra    time.Duration // between two probes of another kind
	many     bool          // there are many peers: what is not an echo is spread over time
	patience time.Duration // until a probe counts as lost
}

// patience is how long a probe waits for its answer at most, and so the pause between two tries.
const patience = time.Second

// Prober asks the peers of one session. Its methods may be called at any time; Run once.
type Prober struct {
	cfg   Config
	start time.Time
	open  func(v6 bool) (transport, error)
	wake  chan struct{} // something is due that was not

	mu         sync.Mutex // of all below; nobody who has it waits for anything
	rules      rules
	followed   *controller.Status
	turn       uint32  // of follow
	peers      []*peer // in the order of the status
	bySubnet   map[netip.Prefix]*peer
	queue      queue
	flights    []flight     // by sequence number; a probe is forgotten when its place is needed, after some seconds
	next       uint16       // sequence number
	oldest     uint16       // no flight before it is open
	transports [2]transport // IPv4, IPv6; nil: none now
	openErrs   [2]error     // why a transport is nil
	openAgain  time.Duration
	noSocket   error         // why some peer could not be asked
	round      time.Duration // between two echoes, as it is
	counts     status.ProbeCounts
	news       news
	notices    pace.Notices // of noSocket
}

// New returns a Prober that does nothing before Run.
func New(cfg Config) *Prober {
	p := &Prober{cfg: cfg, start: time.Now(), open: openSocket, wake: make(chan struct{}, 1), bySubnet: map[netip.Prefix]*peer{},
		rules: rules{interval: cfg.Interval, extra: cfg.Interval, patience: min(patience, cfg.Interval)}, round: cfg.Interval}
	p.addPlaces(0) // an answer that nobody asked for may come at once
	return p
}

// now returns the time since the Prober was made.
func (p *Prober) now() time.Duration { return time.Since(p.start) + 1 } // 0 stands for no time

// Run asks until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	var receivers sync.WaitGroup
	defer receivers.Wait()
	defer p.closeAll()
	for ctx.Err() == nil {
		for _, t := range p.openMissing() {
			receivers.Go(func() { p.receive(t) })
		}
		wait := p.step()
		p.tell()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// reopen is the time between two tries to open a socket.
const reopen = 30 * time.Second

// openMissing opens the sockets that are missing, and returns those that it could.
func (p *Prober) openMissing() (opened []transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now() < p.openAgain {
		return nil
	}
	p.openAgain = p.now() + reopen
	for i, t := range p.transports {
		if t != nil {
			continue
		}
		if t, p.openErrs[i] = p.open(i == 1); p.openErrs[i] == nil {
			p.transports[i], p.noSocket = t, nil
			opened = append(opened, t)
		}
	}
	return opened
}

// closeAll ends all receivers.
func (p *Prober) closeAll() {
	p.mu.Lock()
	all := p.transports
	p.transports, p.openAgain = [2]transport{}, never
	p.mu.Unlock()
	for _, t := range all {
		if t != nil {
			t.close()
		}
	}
}

// lose gives up a transport that receives nothing any more: without it peers would seem to be silent.
func (p *Prober) lose(t transport, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.transports {
		if p.transports[i] == t {
			p.transports[i], p.openErrs[i] = nil, fmt.Errorf("%w: %w", ErrNoSocket, err)
			p.openAgain = p.now() + p.rules.patience
			t.close()
		}
	}
}

// The most that is received, so that a flood of answers costs little: the kernel drops the rest.
const (
	window    = 100 * time.Millisecond
	perWindow = 100
)

// receive takes answers until t is closed.
func (p *Prober) receive(t transport) {
	end, taken := time.Now().Add(window), 0
	for {
		a, err := t.receive()
		if err != nil {
			p.lose(t, err)
			return
		}
		if p.take(&a) {
			pace.Wake(p.wake)
		}
		if now := time.Now(); !now.Before(end) {
			end, taken = now.Add(window), 0
		} else if taken++; taken >= perWindow {
			time.Sleep(end.Sub(now))
		}
	}
}

// step sends what is due, and returns how long there is nothing to do.
func (p *Prober) step() time.Duration {
	const idle, busy = time.Second, 45 * time.Millisecond // the rate allows burst in longer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.follow()
	p.expire()
	for {
		now := p.now()
		q, k, due := p.queue.first()
		if q == nil || due > now {
			return min(idle, max(p.deadline(now, due), 0))
		}
		if !p.cfg.Limit.AllowN(time.Now(), 1) {
			return busy
		}
		p.ask(q, k, now, due)
	}
}

// deadline returns the time until due, or until a probe counts as lost if that is sooner.
func (p *Prober) deadline(now, due time.Duration) time.Duration {
	if p.oldest != p.next {
		due = min(due, p.flight(p.oldest).sent+p.rules.patience)
	}
	return due - now
}

func (p *Prober) flight(seq uint16) *flight { return &p.flights[int(seq)%len(p.flights)] }

// The places for flights are a power of two, so that they divide the sequence numbers.
const (
	flightsOfPeer          = 8
	fewFlights, allFlights = 64, 1024
)

// addPlaces makes places for the flights to that many peers. It never takes some away.
func (p *Prober) addPlaces(peers int) {
	places := fewFlights
	for places < min(flightsOfPeer*peers, allFlights) {
		places *= 2
	}
	if places <= len(p.flights) {
		return
	}
	old := p.flights
	p.flights = make([]flight, places)
	for _, f := range old {
		if f.peer != nil {
			*p.flight(f.seq) = f
		}
	}
}

// ask sends a probe of kind k to q.
func (p *Prober) ask(q *peer, k kind, now, due time.Duration) {
	if before := q.checks[k].sent; k == echo && before > 0 && now-due < urgency/2 {
		p.round += (now - before - p.round) / 16
	}
	f := p.flight(p.next)
	*f = flight{peer: q, to: q.target(k), sent: now, seq: p.next, kind: k, open: true}
	p.next++
	rand.Read(f.cookie[:])
	err := p.send(f)
	if err != nil {
		p.counts.Unsent++
	} else {
		p.counts.Sent++
	}
	q.sending(k, now, err)
	f.try = q.tries
	p.queue.fix(q)
}

// send sends the request of a probe.
func (p *Prober) send(f *flight) (err error) {
	family := 0
	if f.to.Is6() {
		family = 1
	}
	r := p.request(f)
	f.size = r.size - headers(f.to) + icmpHeader
	t := p.transports[family]
	if t == nil {
		p.noSocket = p.openErrs[family]
		return p.noSocket
	}
	f.sum, err = t.send(r)
	return err
}

// request returns the request of a probe.
func (p *Prober) request(f *flight) *request {
	r := &request{to: f.to, seq: f.seq, cookie: f.cookie, size: smallSize(f.to), from: p.source(f)}
	switch f.kind {
	case full:
		r.size = max(p.followed.MTU, headers(f.to)+len(f.cookie))
	case hop:
		r.ttl = 1
	}
	return r
}

// source returns the address of this host to ask from: its own of the overlay, or of the underlay.
func (p *Prober) source(f *flight) netip.Addr {
	if f.kind != under && p.cfg.Tunnel {
		for _, s := range [...]netip.Prefix{p.followed.Lease.Subnet, p.followed.Lease.IPv6Subnet} {
			if s.IsValid() && s.Addr().Is4() == f.to.Is4() {
				return s.Addr()
			}
		}
		return netip.Addr{}
	}
	for _, a := range p.cfg.Local {
		if a.Is4() == f.to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
