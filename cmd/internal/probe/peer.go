package probe

import (
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// named is how many losses in a row change the state of a peer.
const named = 3

// namedUnder is how many losses in a row say that the underlay address is silent. It is asked beside
// the overlay address, one time less.
const namedUnder = named - 1

// Times are those since the Prober was made. never is later than all of them.
const never time.Duration = math.MaxInt64

// urgency is how far a probe that may not wait is put before all others.
const urgency = time.Hour

// hopGap is the least time between two hops to a peer: hosts limit the answers to one a second (net.ipv4.icmp_ratelimit), and
// those who ask more often take them for losses.
const hopGap = 1250 * time.Millisecond

// check is one kind of probe of one peer.
type check struct {
	due     time.Duration // when the next one is to be sent; it waits while one is away
	sent    time.Duration // when the last one was
	last    time.Duration // when one was last answered
	unsent  *unsent       // why the last one could not be sent
	losses  uint8         // in a row, up to named
	ever    bool          // one was answered
	away    bool          // one was sent, and has neither an answer nor timed out
	refused bool          // some host says that no host has this address
}

// unsent is why a probe could not be sent. There are many checks, and few have one: a pointer takes half the room.
type unsent struct{ error }

func unsentFor(err error) *unsent {
	if err == nil {
		return nil
	}
	return &unsent{err}
}

// Unwrap returns the error of the transport.
func (u *unsent) Unwrap() error { return u.error }

// byRoute reports whether the routes and rules of this host refuse the packet, as they then do those of pods: there is no route, or one that is
// unreachable, prohibited, or a blackhole. A firewall (EPERM) may mean ICMP alone.
func (u *unsent) byRoute() bool {
	return u != nil && slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, func(e error) bool { return errors.Is(u, e) })
}

// lose counts a loss.
func (c *check) lose() { c.losses = min(c.losses+1, named) }

// peer is what is known of one subnet of a peer. There may be 10 000: it fits 320 bytes.
type peer struct {
	subnet netip.Prefix
	vtep   netip.Addr

	checks  [kinds]check
	heard   time.Duration // when it last answered through the overlay; 0: never
	failing time.Duration // when the first echo was sent of those that are lost now

	rtt, smooth time.Duration
	tries       uint32 // echoes
	lostTries   uint32 // of the last 32, the last one in the lowest bit
	pathMTU     int32  // what a router says; 0: nothing
	at          int32  // in the queue

	state  status.ProbeState
	reason string
	since  time.Duration
	turn   uint32 // the last one of Prober.follow that had it
	told   bool   // the log says that something is wrong
	silent bool   // it does not answer through the overlay, or has not yet
	before bool   // it answered through the overlay at another VTEP, or in an earlier session
	direct bool   // it is reached without a tunnel: no host has the base address of its subnet
}

// newPeer returns a peer of which nothing is known yet, and which is asked first at due.
func newPeer(subnet netip.Prefix, vtep netip.Addr, tunnel bool, now, due time.Duration) *peer {
	q := &peer{subnet: subnet, vtep: vtep, direct: !tunnel, silent: true,
		state: status.ProbeUnknown, reason: status.ReasonNotProbed, since: now}
	for k := range q.checks {
		q.checks[k].due = never
	}
	q.checks[echo].due = due
	return q
}

// behind returns an address of a subnet that is neither its base, nor the first one, nor broadcast, and that a pod
// rarely has. It is not valid if the subnet is too small for one.
func behind(subnet netip.Prefix) netip.Addr {
	host := min(subnet.Addr().BitLen()-subnet.Bits(), 16)
	if host < 2 {
		return netip.Addr{}
	}
	b := subnet.Masked().Addr().AsSlice()
	low := 1<<host - 2
	b[len(b)-1] |= byte(low)
	b[len(b)-2] |= byte(low >> 8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// next returns what to send next, and when.
func (q *peer) next() (next kind, due time.Duration) {
	due = never
	for k := range q.checks {
		if c := &q.checks[k]; !c.away && c.due < due {
			next, due = kind(k), c.due
		}
	}
	return next, due
}

// hasAnswered reports whether it ever answered through the overlay: if it does not now, something is wrong.
func (q *peer) hasAnswered() bool { return q.heard > 0 || q.before }

// target returns the address that a kind of probe is for.
func (q *peer) target(k kind) netip.Addr {
	switch k {
	case hop:
		return behind(q.subnet)
	case under:
		return q.vtep
	}
	if q.direct {
		return q.vtep
	}
	return q.subnet.Addr()
}

// sending notes that a probe is sent. err is why it could not be: then it will be lost.
func (q *peer) sending(k kind, now time.Duration, err error) {
	c := &q.checks[k]
	c.away, c.sent, c.unsent = true, now, unsentFor(err)
	if k == echo {
		q.tries++
		q.lostTries <<= 1
	}
}

// answered notes that f was answered, maybe too late.
func (q *peer) answered(f *flight, now time.Duration, r *rules) {
	c := &q.checks[f.kind]
	c.losses, c.last, c.ever, c.refused, c.unsent = 0, now, true, false, nil
	if f.kind != under {
		q.hear(now, r)
	}
	if f.kind == echo {
		q.lostTries &^= q.bitOf(f)
	}
	if f.kind == full {
		q.pathMTU = 0
	}
	if c.sent == f.sent {
		c.away = false
		c.due = q.after(f.kind, r)
	}
}

// hopAt returns when a hop may be sent that is wanted at due.
func (q *peer) hopAt(due time.Duration) time.Duration {
	if h := &q.checks[hop]; h.sent > 0 {
		return max(due, h.sent+hopGap)
	}
	return due
}

// bitOf returns the bit of an echo in lostTries; 0: it is too old.
func (q *peer) bitOf(f *flight) uint32 { return uint32(1) << (q.tries - f.try) } // a shift of 32 or more is 0

// measure notes a round trip.
func (q *peer) measure(rtt time.Duration) {
	if q.rtt = max(rtt, 1); q.smooth == 0 {
		q.smooth = q.rtt
	}
	q.smooth += (q.rtt - q.smooth) / 8 // RFC 6298
}

// hear notes that the peer has answered through the overlay. If it had been silent, everything else is asked at once,
// or of many peers some time later.
func (q *peer) hear(now time.Duration, r *rules) {
	q.heard = now
	q.checks[echo].losses = 0
	if !q.silent {
		return
	}
	q.silent = false
	for _, k := range [...]kind{full, hop, under} {
		c := &q.checks[k]
		if c.losses = 0; k == hop && !behind(q.subnet).IsValid() || k == under && c.ever {
			continue
		}
		if c.due = now; r.many {
			c.due += rand.N(r.extra)
		}
		if k == hop {
			c.due = q.hopAt(c.due)
		}
	}
}

// after returns when the next probe of a kind is due if all goes well.
func (q *peer) after(k kind, r *rules) time.Duration {
	sent := q.checks[k].sent
	switch {
	case k == echo:
		return sent + jitter(r.interval)
	case q.silent, k == under && q.checks[under].ever:
		return never
	case k == hop:
		return q.hopAt(sent + jitter(r.extra))
	}
	return sent + jitter(r.extra)
}

// jitter returns a duration between 4/5 of d and d.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5+1) }

// lost notes that there was no answer to f in time.
func (q *peer) lost(f *flight, now time.Duration, r *rules) {
	c := &q.checks[f.kind]
	c.away, c.due = false, q.after(f.kind, r)
	switch f.kind {
	case echo:
		q.lostEcho(f, now)
	case full, hop:
		q.lostExtra(f, now, r)
	case under:
		if c.lose(); q.checks[echo].losses > 0 && c.losses < namedUnder {
			c.due = now - urgency
		}
	}
}

// lostEcho asks again soon, and the underlay address and the hosts behind the peer at the same time.
func (q *peer) lostEcho(f *flight, now time.Duration) {
	q.lostTries |= q.bitOf(f)
	if q.heard >= f.sent {
		return // it answers other probes
	}
	c := &q.checks[echo]
	if c.losses == 0 {
		q.failing = f.sent
	}
	soon := now
	if c.lose(); c.losses < named {
		soon = now - urgency
		c.due = soon
	} else {
		q.silent = true
		q.checks[full].due = never
	}
	q.checks[under].due = min(q.checks[under].due, soon)
	if h := &q.checks[hop]; behind(q.subnet).IsValid() {
		h.due = min(h.due, q.hopAt(soon))
	}
}

// lostExtra counts a loss if the peer answered an echo meanwhile: for a hop, any probe. If it was not asked then, it is
// asked again, together with an echo.
func (q *peer) lostExtra(f *flight, now time.Duration, r *rules) {
	c, e := &q.checks[f.kind], &q.checks[echo]
	if q.silent || f.kind == hop && !c.ever {
		return
	}
	alive := q.heard
	if f.kind == full {
		alive = e.last
	}
	switch {
	case alive >= f.sent-r.patience:
		c.lose()
	case q.lostTries&1 != 0:
		return // the last echo was lost
	}
	if c.losses < named {
		c.due, e.due = now-urgency, now-urgency
	}
	if f.kind == hop {
		c.due = q.hopAt(c.due)
	}
}

// isLocal notes that the address behind the peer is one of the peer's own: that it answers tells nothing about what is behind it.
func (q *peer) isLocal() { q.checks[hop].ever = false }

// lossTries is how many of the last echoes the loss is about.
const lossTries = 20

// loss returns how many echoes were lost of how many of the last ones.
func (q *peer) loss() (lost, tries int) {
	done, lostTries := q.tries, q.lostTries
	if q.checks[echo].away && done > 0 { // it is not known yet
		done, lostTries = done-1, lostTries>>1
	}
	return bits.OnesCount32(lostTries & (1<<lossTries - 1)), int(min(done, lossTries))
}
