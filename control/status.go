package control

import (
	"net/netip"
	"time"
)

// Status is how a Controller is: one immutable value, replaced after every Sync and every fault.
type Status struct {
	Lease    Lease
	Held     bool // Lease is this node's; false before the first one and after a loss
	MTU      int  // of the overlay, in bytes
	Ready    bool // the device was up and every peer was attempted, at least once
	Peers    []PeerStatus
	Rejected []Rejection // leases that are not used
	Bad      []BadLease  // entries that cannot be read
	Err      string      // why the last Sync failed as a whole; empty if it did not
	Since    time.Time   // when Err became what it is
	Stats    Stats
}

// PeerState says how a peer is, as far as control knows.
type PeerState string

// The states of a peer. PeerDirect is added by whoever knows the direct routes.
const (
	PeerUp      PeerState = "up"      // programmed
	PeerDirect  PeerState = "direct"  // programmed, by a direct route without encapsulation
	PeerRefused PeerState = "refused" // its lease is not used
	PeerFailed  PeerState = "failed"  // this host could not program it: tried again
	PeerKept    PeerState = "kept"    // programmed, though the store has lost its lease
	PeerUnknown PeerState = "unknown" // not attempted yet
)

// PeerStatus is how one subnet of one peer is.
type PeerStatus struct {
	Subnet netip.Prefix // of the lease: the key of a peer
	VTEP   netip.Addr   // the underlay address by which it is reached
	State  PeerState
	Reason string    // stable id in snake_case; empty while State is up or direct
	Err    string    // the same for people
	Since  time.Time // when State became what it is
}
