package status

import (
	"net/netip"
	"time"
)

// Probes is what ICMP echo requests tell of the peers. They only inform: nothing in the overlay
// depends on them.
type Probes struct {
	IntervalMS int64  `json:"interval_ms"` // between two requests to one peer, as asked for
	RoundMS    int64  `json:"round_ms"`    // the same as it is: longer with many peers, because the requests of a second are bounded
	Err        string `json:"err,omitempty"`
	Fix        string `json:"fix,omitempty"` // what to do about Err

	Counts ProbeCounts `json:"counts"` // of all sessions so far

	Peers []Probe `json:"peers,omitempty"` // in the order of Network.Peers; those that are refused or failed are left out
}

// ProbeCounts counts probes. What is counted never falls.
type ProbeCounts struct {
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"` // of these, also late
	Lost     uint64 `json:"lost"`     // of these, without an answer in time
	Unsent   uint64 `json:"unsent"`   // probes that this host refused to send
	Forged   uint64 `json:"forged"`   // answers to nothing that was asked, from the wrong host, or with the wrong content
	Changes  uint64 `json:"changes"`  // of the state of a peer

	RTTs      [RTTBuckets]uint64 `json:"rtts"`       // round trips through the overlay, by the bounds of RTTBounds
	RTTMicros uint64             `json:"rtt_sum_us"` // the sum of all of them, in microseconds
}

// Plus returns the sum of both.
func (c ProbeCounts) Plus(d ProbeCounts) ProbeCounts {
	c.Sent, c.Answered, c.Lost = c.Sent+d.Sent, c.Answered+d.Answered, c.Lost+d.Lost
	c.Unsent, c.Forged, c.Changes, c.RTTMicros = c.Unsent+d.Unsent, c.Forged+d.Forged, c.Changes+d.Changes, c.RTTMicros+d.RTTMicros
	for i, n := range d.RTTs {
		c.RTTs[i] += n
	}
	return c
}

// RTTBuckets is the number of ProbeCounts.RTTs: one for each of RTTBounds, and one for what is above the last.
const RTTBuckets = 14

// RTTBounds returns the upper bounds of the buckets but for the last. A round trip of exactly a bound is counted below it.
func RTTBounds() [RTTBuckets - 1]time.Duration {
	return [...]time.Duration{100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
		5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
		250 * time.Millisecond, 500 * time.Millisecond, time.Second}
}

// ProbeState says how a peer answers.
type ProbeState string

// The states of a peer that is probed.
const (
	ProbeOK       ProbeState = "ok"       // answers through the overlay
	ProbeDegraded ProbeState = "degraded" // answers, but something does not work
	ProbeDown     ProbeState = "down"     // does not answer, though it could
	ProbeUnknown  ProbeState = "unknown"  // nothing can be told
)

// The reasons of a state: stable ids.
const (
	ReasonHostDown      = "host_down"      // down: neither the underlay nor the overlay address answers, and the underlay one did
	ReasonTunnelBlocked = "tunnel_blocked" // down: the underlay address answers, the overlay one does not
	ReasonNoAnswer      = "no_answer"      // down: the overlay address answers no more, and the underlay one never did
	ReasonPathMTU       = "path_mtu"       // degraded: small packets are answered, those of the overlay's MTU are not
	ReasonNoForwarding  = "no_forwarding"  // degraded: the host answers, and no longer forwards to its pods
	ReasonNotProbed     = "not_probed"     // unknown: it is too early
	ReasonNeverAnswered = "never_answered" // unknown: the host is down, or drops ICMP
	ReasonNotSent       = "not_sent"       // unknown, or down if it did answer or a route of this host refuses it: this host cannot send
	ReasonNoSocket      = "no_socket"      // unknown: this host has no ICMP socket
)

// The values of Probe.MTU.
const (
	MTUOK       = "ok"
	MTUTooSmall = "too_small"
)

// The values of Probe.Forwards.
const (
	ForwardsYes = "yes"
	ForwardsNo  = "no"
)

// Unknown is the value of Probe.MTU and of Probe.Forwards if neither can be told.
const Unknown = "unknown"

// Probe is how one subnet of one peer answers.
type Probe struct {
	Subnet netip.Prefix `json:"subnet"` // of the lease: the key of a peer
	VTEP   netip.Addr   `json:"vtep"`   // its underlay address
	State  ProbeState   `json:"state"`
	Reason string       `json:"reason,omitempty"` // why State is not ok
	Err    string       `json:"err,omitempty"`    // the same for people
	Fix    string       `json:"fix,omitempty"`    // the next step
	Since  time.Time    `json:"since"`            // when State or Reason became what it is
	Last   time.Time    `json:"last,omitzero"`    // when it answered through the overlay; zero: it never did

	RTTMicros    int64  `json:"rtt_us,omitempty"`        // the last round trip through the overlay, in microseconds; 0: none
	SmoothMicros int64  `json:"rtt_smooth_us,omitempty"` // a moving average of it
	Tries        int    `json:"tries"`                   // how many of the last requests Lost is about
	Lost         int    `json:"lost"`                    // of these, through the overlay
	MTU          string `json:"mtu"`                     // packets of the overlay's MTU arrive: ok, too_small or unknown
	PathMTU      int    `json:"path_mtu,omitempty"`      // what a router says the path takes, in bytes; 0: no router has told it
	Forwards     string `json:"forwards"`                // the host forwards to its pods: yes, no or unknown
}
