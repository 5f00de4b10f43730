package probe

import (
	"errors"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// judge sets the state of the peer and its reason. It reports whether they are others now.
func (q *peer) judge(now time.Duration) bool {
	state, reason := q.verdict()
	if state == q.state && reason == q.reason {
		return false
	}
	q.state, q.reason, q.since = state, reason, now
	return true
}

// verdict says what the answers mean. While it is too early to tell, it is what it was.
func (q *peer) verdict() (status.ProbeState, string) {
	switch e := &q.checks[echo]; {
	case !q.silent && e.losses == 0:
		return q.verdictHeard()
	case e.losses < named:
		return q.state, q.reason
	case e.unsent != nil && errors.Is(e.unsent, ErrNoSocket):
		return status.ProbeUnknown, status.ReasonNoSocket
	case e.unsent.byRoute():
		return status.ProbeDown, status.ReasonNotSent
	case e.unsent != nil:
		return status.ProbeUnknown, status.ReasonNotSent
	}
	return q.verdictSilent()
}

// verdictHeard is the verdict on a peer that answers.
func (q *peer) verdictHeard() (status.ProbeState, string) {
	switch {
	case q.checks[full].losses >= named:
		return status.ProbeDegraded, status.ReasonPathMTU
	case q.checks[hop].losses >= named:
		return status.ProbeDegraded, status.ReasonNoForwarding
	}
	return status.ProbeOK, ""
}

// verdictSilent is the verdict on a peer that does not answer through the overlay. A host whose underlay address has never
// answered may drop ICMP: it is down only if a host on the way says that it is not there.
func (q *peer) verdictSilent() (status.ProbeState, string) {
	u := &q.checks[under]
	state := status.ProbeUnknown
	if q.hasAnswered() {
		state = status.ProbeDown
	}
	switch {
	case u.losses == 0 && u.ever && u.last >= q.failing:
		return status.ProbeDown, status.ReasonTunnelBlocked
	case u.losses < namedUnder:
		return q.state, q.reason
	case u.refused:
		return status.ProbeDown, status.ReasonHostDown
	case u.unsent != nil:
		return state, status.ReasonNotSent
	case u.ever:
		return status.ProbeDown, status.ReasonHostDown
	case q.hasAnswered():
		return state, status.ReasonNoAnswer
	}
	return state, status.ReasonNeverAnswered
}

// mtu returns whether packets of the overlay's MTU arrive.
func (q *peer) mtu() string {
	switch c := &q.checks[full]; {
	case q.silent:
		return status.Unknown
	case c.losses >= named:
		return status.MTUTooSmall
	case c.ever:
		return status.MTUOK
	}
	return status.Unknown
}

// forwards returns whether the host forwards to its pods.
func (q *peer) forwards() string {
	switch c := &q.checks[hop]; {
	case q.silent || !c.ever:
		return status.Unknown
	case c.losses >= named:
		return status.ForwardsNo
	}
	return status.ForwardsYes
}
