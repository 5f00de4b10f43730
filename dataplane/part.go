package dataplane

import (
	"context"
	"log/slog"
	"time"
)

// Part keeps one aspect of an overlay true on this host: traffic rules, direct routes,
// forwarding. An overlay is a list of parts, opened in order before any link is up. Methods may
// be called from several goroutines, but Sync and Prune of one overlay never at the same time.
type Part interface {
	// Sync adds and changes: afterwards everything that w wants is there. What w no longer wants
	// may stay, because a later part may still rely on it. It returns w for the parts after it. It
	// is idempotent and programs all it can even when it returns an error. An error that
	// consists of *PeerError only (see PeerErrors) means that every peer was attempted.
	Sync(ctx context.Context, w Wanted) (Wanted, error)
	// Prune removes what w does not want; w is what Sync of this part was last given. It is
	// called after Sync of all parts, in reverse order: a part admits before a later one needs
	// that, and forgets after the later one no longer does. It is left out if a later part
	// failed as a whole.
	Prune(ctx context.Context, w Wanted) error
	// Run repairs what others change until ctx ends and then returns nil; an error means that
	// the part cannot go on. It calls again if a Sync of all parts is needed. It is called once.
	Run(ctx context.Context, again func()) error
	// Status returns how well the part works. It may be called at any time and never waits.
	Status() PartStatus
	// Close releases what the constructor acquired, and leaves on the host what the part made,
	// so that traffic goes on. It may be called more than once, and after Run.
	Close() error
}

// State is how well a part works.
type State string

// The states of a part.
const (
	StateOK       State = "ok"
	StateDegraded State = "degraded" // works for some peers, or without something that is only good to have
	StateFailed   State = "failed"
)

// PartStatus is the state of a part and of what it keeps. It is a value: nobody changes it after
// it was returned.
type PartStatus struct {
	Name    string         `json:"name"`
	State   State          `json:"state"`
	Err     string         `json:"err,omitempty"` // why State is not ok
	Cause   error          `json:"-"`             // the same
	Fix     string         `json:"fix,omitempty"` // what to do about it; added by whoever knows it
	Since   time.Time      `json:"since"`         // when State or Err became what they are
	Objects []ObjectStatus `json:"objects,omitempty"`
	// Warnings are faults of this host that stop packets of the overlay and that overlayd must not or cannot mend itself.
	Warnings []Warning   `json:"warnings,omitempty"`
	Peers    []PeerFault `json:"-"` // those that do not work now
}

// Warning is a fault of this host that its administrator has to mend.
type Warning struct {
	ID    string    `json:"id"`   // in snake_case, stable: that of the check of overlayd doctor which explains it
	Text  string    `json:"text"` // what is wrong, and what that does
	Fix   string    `json:"fix"`  // what to do
	Since time.Time `json:"since"`
}

// The IDs of warnings.
const (
	WarnForward    = "forward_chains" // a chain of the packet filter drops what this host forwards for the overlay
	WarnPort       = "udp_port"       // a chain of the packet filter drops the datagrams of VXLAN
	WarnForwarding = "forwarding"     // this host, or an interface of it, does not forward
	WarnReturnPath = "rp_filter"      // the kernel drops what peers send, because the way back uses another interface
	WarnUnderlay   = "underlay"       // the underlay interface is gone or down, or has no carrier or not its address
	WarnFought     = "repair_undone"  // somebody keeps undoing a repair
	WarnFlanneld   = "flanneld"       // a flanneld serves the same network
)

// PeerFault is why a peer does not work now.
type PeerFault struct {
	*PeerError
	Since time.Time // when it began
}

// ObjectStatus counts one kind of object that a part keeps, such as routes.
type ObjectStatus struct {
	Kind       string    `json:"kind"`
	Wanted     int       `json:"wanted"`
	Have       int       `json:"have"`    // of those wanted
	Repairs    uint64    `json:"repairs"` // objects that others changed and the part put right
	LastRepair time.Time `json:"last_repair,omitzero"`
	Lately     uint64    `json:"repairs_lately,omitempty"` // of Repairs those of the last ten minutes
}

// Op is what a Change does.
type Op string

// The operations.
const (
	OpAdd     Op = "add"
	OpReplace Op = "replace"
	OpDelete  Op = "delete"
)

// KindDevice is the kind of an overlay device. The first word of its changes' Was names what was wrong.
const KindDevice = "device"

// Change is one change of one object of the host: what a repair logs and counts, and what a dry run prints.
type Change struct {
	Op   Op     `json:"op"`
	Kind string `json:"kind"`          // as in ObjectStatus
	Key  string `json:"key"`           // names the object among those of its kind
	Was  string `json:"was,omitempty"` // empty for an add
	Is   string `json:"is,omitempty"`  // empty for a delete
}

// LogValue implements slog.LogValuer.
func (c Change) LogValue() slog.Value {
	return slog.GroupValue(slog.String("op", string(c.Op)), slog.String("kind", c.Kind),
		slog.String("key", c.Key), slog.String("was", c.Was), slog.String("is", c.Is))
}
