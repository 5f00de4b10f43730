package controller

import (
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/encap"
)

// Status is how a Controller is. It is an immutable value: a new one takes its place after
// every Sync, every change of the lease and every fault. See publish.go.
type Status struct {
	Lease    control.Lease // the node's, as it is or was last
	Held     bool          // the node has Lease now; false before the first one and after a loss
	Released bool          // Lease was given back by Drain
	MTU      int           // of the overlay, in bytes
	Ready    bool          // the device was up, every peer was attempted and the subnet file written, at least once

	LeaseFault Fault // why there is no lease, or why it cannot be renewed now
	SyncFault  Fault // why the last Sync failed as a whole

	SubnetFileFault Fault // why the subnet file cannot be restored now
	LeasesFileFault Fault // why the leases file cannot be written now

	Peers    []PeerStatus  // by VTEP and subnet; those that are refused come last
	Rejected []EntryStatus // leases that are not used, by key
	Bad      []EntryStatus // entries that cannot be read, by key
	Stats    Stats
}

// Stats counts what a Controller did since New.
type Stats struct {
	Leases       int    `json:"leases"`   // in the store
	Bad          int    `json:"bad"`      // entries of the store that cannot be read
	Rejected     int    `json:"rejected"` // leases, or families of one, that are not used
	Peers        int    `json:"peers"`    // in use
	BadUpdates   uint64 `json:"bad_updates"`
	Syncs        uint64 `json:"syncs"`
	SyncFailures uint64 `json:"sync_failures"`
	Renewals     uint64 `json:"renewals"`
	RenewFails   uint64 `json:"renew_failures"`
	Losses       uint64 `json:"losses"`       // of leases: to somebody else, or because they ended
	FileRepairs  uint64 `json:"file_repairs"` // of the subnet file, which somebody else removed or changed
	MACChanges   uint64 `json:"mac_changes"`  // of the own lease, because another host publishes the same MAC
	Withdrawn    uint64 `json:"withdrawn"`    // routes to subnets of peers, because their leases are refused now, and such that hid the store
}

// Plus returns s with what a Controller before has counted added. What is of now stays: leases, bad, rejected, peers.
func (s Stats) Plus(before Stats) Stats {
	s.BadUpdates += before.BadUpdates
	s.Syncs += before.Syncs
	s.SyncFailures += before.SyncFailures
	s.Renewals += before.Renewals
	s.RenewFails += before.RenewFails
	s.Losses += before.Losses
	s.FileRepairs += before.FileRepairs
	s.MACChanges += before.MACChanges
	s.Withdrawn += before.Withdrawn
	return s
}

// Fault is something that does not work now. The zero value: it works.
type Fault struct {
	Reason string    `json:"reason,omitempty"` // stable id in snake_case
	Err    string    `json:"err,omitempty"`    // the same for people
	Fix    string    `json:"fix,omitempty"`    // what to do, if anybody knows
	Since  time.Time `json:"since,omitzero"`   // when Reason became what it is
}

// PeerState says how a peer is, as far as the Controller knows.
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
	Subnet netip.Prefix `json:"subnet"`         // of the lease: the key of a peer
	VTEP   netip.Addr   `json:"vtep"`           // the underlay address by which it is reached; not valid for some that are refused
	MAC    encap.MAC    `json:"-"`              // of the VTEP
	Name   string       `json:"name,omitempty"` // of the lease's node, safe to print
	State  PeerState    `json:"state"`
	Reason string       `json:"reason,omitempty"` // stable id in snake_case; if State is up or direct, what fails all the same
	Err    string       `json:"err,omitempty"`    // the same for people
	Since  time.Time    `json:"since"`            // when State or Reason became what it is
}

// EntryStatus is an entry of the store that is not used.
type EntryStatus struct {
	Key    string       `json:"key"`             // safe to print
	Subnet netip.Prefix `json:"subnet,omitzero"` // of the family that is refused; not valid if it cannot be read
	Node   netip.Addr   `json:"node,omitzero"`   // public IP of the lease's node
	Name   string       `json:"name,omitempty"`  // of the node, safe to print
	Fault
}
