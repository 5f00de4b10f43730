package carrier

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// DefaultMinPathMTU is the least MTU of an underlay path in bytes that is believed: that of IPv6.
const DefaultMinPathMTU = encap.MaxTooBig

const (
	pathPeriod = 400 * time.Millisecond // between two looks at a peer
	pathWait   = time.Second            // for what ICMP says about a probe
	pathAge    = time.Minute            // after which what was learnt is tried again
	// pathAgeUnproven is the same for what anybody may have said who floods all ports of this host.
	pathAgeUnproven = time.Second
	// pathTries is how many probes in a row have to pass before what was learnt is forgotten: a report may get lost.
	pathTries = 2
	// pathHints is how many reports without a proof it takes over IPv4, each about a probe of its own.
	pathHints = 3
	// While ICMP says that a path is narrow and probes pass, one goes out after each of these times, growing.
	pathBackoff, pathBackoffMost = time.Second, 10 * time.Second

	pathTrials = 8 // probes at a time
)

// paths finds out the path MTU to the peers of one family, if the underlay may not fragment.
//
// What this host knows from its own routes and links holds at once. Anybody can forge ICMP, so an ICMP report is only a reason to
// send a probe: a packet of full length from a new port, which the peer's host drops in silence. Only a report that quotes the probe
// is believed. If this host itself refuses to send the probe, shorter ones find out what it takes.
// Some IPv4 routers quote only a UDP header. Then there must be a report about each of several probes in a row, and
// meanwhile no report about ports from which nothing was sent. Until a report is believed, packets are sent whole. So nobody who cannot
// see the probe can make this host send shorter packets, or make it tell pods to. The exception is a host without a free UDP port, where no
// probe can be sent.
type paths struct {
	log   *slog.Logger
	probe *udp.PathProbe
	floor int // in bytes of the underlay

	below atomic.Uint64 // reports of less than floor

	mu      sync.Mutex // of all below, and of the path of each peer
	sprayed time.Time  // when somebody last reported to a port from which nothing was sent
	trials  []*udp.Trial
	owners  []*Peer // of the probes that are out, by the index of their trial; nil: the trial is idle
	idle    []int   // of trials: one more than the index
	notices pace.Notices
	closed  bool
}

func openPaths(cfg UDPConfig, mark uint32) (*paths, error) {
	local := cfg.Local.Addr()
	s := &paths{log: cfg.Log, floor: cfg.MinPathMTU}
	if s.floor == 0 {
		s.floor = DefaultMinPathMTU
	}
	var err error
	if s.probe, err = udp.OpenPathProbe(local, mark); err != nil {
		return nil, err
	}
	for range pathTrials {
		t, err := udp.OpenTrial(local, mark)
		if err != nil {
			s.close()
			return nil, err
		}
		s.trials, s.owners = append(s.trials, t), append(s.owners, nil)
		s.idle = append(s.idle, len(s.trials))
	}
	return s, nil
}

func (s *paths) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.probe.Close()
	for _, t := range s.trials {
		t.Close()
	}
}

// innerMTU returns the longest packet that fits an underlay packet of mtu bytes to p.
func innerMTU(mtu int, p *Peer) int { return max(mtu-encap.Overhead(p.Addr), MinMTU) }

// refused notes why this host itself did not send a datagram to p whole.
func (s *paths) refused(p *Peer) {
	if mtu, err := s.probe.LocalMTU(&p.sockaddr); err == nil {
		p.SetMTU(innerMTU(mtu, p))
	}
}

// refresh looks at the paths to the peers of this family. It reports whether a look is due soon: a probe is out.
func (s *paths) refresh(entries []Entry, hostMTU int) (soon bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	now := time.Now()
	s.judgeAll(now)
	for i := range entries {
		e := &entries[i]
		if e.Peer.Addr.Is6() == s.probe.IsIPv6() && s.look(e, hostMTU, now) {
			soon = true
		}
	}
	return soon
}

// judgeAll judges the probes that are out, whoever their peers are. A peer may have gone, and be in no entries any more: its trial would
// never be idle again.
func (s *paths) judgeAll(now time.Time) {
	for _, p := range s.owners {
		if p != nil {
			s.judge(p, now)
		}
	}
}

// look looks at the path of one peer, and reports whether a probe is out.
func (s *paths) look(e *Entry, hostMTU int, now time.Time) bool {
	p := e.Peer
	st := &p.path
	if st.trial != 0 {
		return true
	}
	if !st.again && now.Sub(st.looked) < pathPeriod {
		return false
	}
	sent := p.sent.Load()
	busy := p.turned.Swap(false) || sent != st.sent
	st.looked, st.sent = now, sent
	if !busy && !st.again {
		return false
	}
	full := hostMTU + encap.Overhead(p.Addr)
	known, err := s.probe.MTU(&p.sockaddr)
	local := full
	if err == nil && known < full {
		if local, err = s.probe.LocalMTU(&p.sockaddr); err == nil {
			local = min(local, full)
		}
	}
	if err != nil {
		return false // no route: nothing is sent either
	}
	if st.local = 0; local < full {
		st.local = innerMTU(local, p)
	}
	p.apply()
	if known >= local && st.mtu == 0 {
		*st = path{looked: st.looked, sent: st.sent, local: st.local}
		return false
	}
	if known < s.floor && known < local && known != st.below {
		s.tellBelow(p, known, now)
	}
	if !st.again && now.Before(st.next) {
		return false
	}
	return s.send(e, known, local, now)
}

// apply makes known what the path to p takes.
func (p *Peer) apply() {
	mtu := p.path.local
	if p.path.mtu != 0 {
		if inner := innerMTU(p.path.mtu, p); mtu == 0 || inner < mtu {
			mtu = inner
		}
	}
	if p.MTU() != mtu {
		p.SetMTU(mtu)
	}
}

// send sends a probe of that many bytes on the underlay, if there is a trial to do so and addresses for it. If every UDP port of this host
// is taken, no probe can be sent. Then the kernel's note is believed, down to floor: without that, long packets would be lost on a narrow path.
func (s *paths) send(e *Entry, known, size int, now time.Time) bool {
	p := e.Peer
	st := &p.path
	if len(s.idle) == 0 || !e.Self.IsValid() {
		return false
	}
	st.again, st.next = false, now.Add(pathBackoff) // if it cannot be sent
	t := s.idle[len(s.idle)-1]
	if err := s.trials[t-1].Send(&p.sockaddr, e.probe(size)); err != nil {
		switch {
		case errors.Is(err, unix.EMSGSIZE): // this host encapsulates once more (encap of a route, IPsec), which neither route nor link tells
			s.believe(p, s.takes(e, s.trials[t-1], size), now, pathAge, 1)
		case errors.Is(err, unix.EAGAIN) && known < size:
			s.believe(p, known, now, pathAgeUnproven, 1)
		}
		return false
	}
	s.idle, s.owners[t-1] = s.idle[:len(s.idle)-1], p
	st.trial, st.proof, st.until = t, encap.HeaderLen+encap.ProbeHeader(e.Self), now.Add(pathWait)
	return true
}

// takes returns how many bytes this host sends to a peer, if it refuses size: at least floor. The kernel's note may tell less, as somebody may have forged.
func (s *paths) takes(e *Entry, t *udp.Trial, size int) int {
	taken := s.floor
	for refused := size; refused-taken > 1; {
		between := (taken + refused) / 2
		if t.Send(&e.Peer.sockaddr, e.probe(between)) == nil {
			taken = between
		} else {
			refused = between
		}
	}
	_ = t.LeavePort() // what routers say about these is nobody's
	return taken
}

// probe returns the payload of a datagram of that many bytes on the underlay, which the peer's host drops in silence.
func (e *Entry) probe(size int) []byte {
	var nonce [4]byte
	_, _ = rand.Read(nonce[:]) // never fails
	b := make([]byte, encap.HeaderLen+max(innerMTU(size, e.Peer), encap.ProbeHeader(e.Self)))
	e.Template.Put(b, encap.PutProbe(b[encap.HeaderLen:], e.Self, e.Base, binary.BigEndian.Uint32(nonce[:])))
	return b
}

// judge looks what became of the probe to p that is out. Once that is known, or its time is up, the trial is idle.
func (s *paths) judge(p *Peer, now time.Time) {
	st := &p.path
	r := s.trials[st.trial-1].Report(st.proof)
	if r.MTU != 0 && !r.Proven {
		st.hint = r.MTU
	}
	if !r.Proven && now.Before(st.until) {
		return
	}
	hint := st.hint
	s.listen(now)
	s.idle, s.owners[st.trial-1] = append(s.idle, st.trial), nil
	st.trial, st.hint = 0, 0
	switch {
	case r.Proven:
		s.believe(p, r.MTU, now, pathAge, pathTries)
	case hint == 0 || p.Addr.Is6(): // all routers of IPv6 quote
		s.pass(p, now)
	case !s.sprayed.Before(st.until.Add(-pathWait)):
		st.hints, st.next = 0, now.Add(pathBackoff)
	case st.hints+1 >= pathHints:
		s.believe(p, hint, now, pathAgeUnproven, 1)
	default:
		st.hints, st.again = st.hints+1, true
	}
}

// listen notes whether somebody reports to ports from which nothing was sent: then reports that quote no probe are not believed.
func (s *paths) listen(now time.Time) {
	for _, i := range s.idle {
		if s.trials[i-1].Heard() {
			s.sprayed = now
		}
	}
}

// pass notes that no ICMP message came about a probe.
func (s *paths) pass(p *Peer, now time.Time) {
	st := &p.path
	st.hints = 0
	st.passed++
	switch {
	case st.mtu == 0: // as before
		st.wait = min(max(2*st.wait, pathBackoff), pathBackoffMost)
		st.next = now.Add(st.wait)
	case st.passed < st.tries:
		st.again = true
	default:
		s.tell(now, p, "a path is no longer narrow", st.mtu)
		st.mtu, st.wait, st.next = 0, pathBackoff, now.Add(pathBackoff)
		p.apply()
	}
}

// believe is for a probe that was too long. What is believed is tried again after that age, by that many probes.
func (s *paths) believe(p *Peer, mtu int, now time.Time, age time.Duration, tries int) {
	st := &p.path
	if mtu < s.floor {
		s.tellBelow(p, mtu, now)
		mtu = s.floor
	}
	if st.mtu != mtu {
		s.tell(now, p, "a path is narrow", mtu)
	}
	st.mtu, st.tries, st.passed, st.hints, st.wait = mtu, tries, 0, 0, 0
	st.next = now.Add(age)
	p.apply()
}

// tell logs what was found out about a path.
func (s *paths) tell(now time.Time, p *Peer, text string, mtu int) {
	if due, _ := s.notices.Due(now, pace.Notice{Key: p.Addr.String(), Text: text}); len(due) > 0 {
		s.log.Info(text, "peer", p.Addr, "bytes", mtu)
	}
}

// tellBelow is for a report of less than is believed: it is forged, or the path cannot carry what this host sends.
func (s *paths) tellBelow(p *Peer, mtu int, now time.Time) {
	p.path.below = mtu
	s.below.Add(1)
	due, _ := s.notices.Due(now, pace.Notice{Key: p.Addr.String(), Text: "below"})
	if len(due) > 0 {
		s.log.Warn("ICMP says that a path takes less than --min-path-mtu: not believed", "peer", p.Addr, "bytes", mtu, "min", s.floor, "times", s.below.Load(),
			"fix", "if the path is that narrow: a smaller --min-path-mtu; else somebody forges ICMP")
	}
}
