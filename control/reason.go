package control

import (
	"errors"

	"github.com/overlayd/overlayd/dataplane"
)

// reasonError is an error with a stable id, by which programs tell faults apart.
type reasonError struct {
	reason string
	err    error
}

// Error implements error.
func (e *reasonError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *reasonError) Unwrap() error { return e.err }

// WithReason gives err an id in snake_case, which Reason returns. The text stays the same.
func WithReason(reason string, err error) error { return &reasonError{reason, err} }

// ReasonUnreachable is the Reason of an error of a Store that cannot be reached.
const ReasonUnreachable = "store_unreachable"

// What keeps a store from being asked though it may run: people have to change how it is reached. Errors with it have
// ReasonUnreachable, but those with ErrUser.
var (
	ErrUntrusted   = errors.New("the certificate of the store is not trusted")
	ErrOtherName   = errors.New("the certificate of the store is for another name or address")
	ErrNotValidNow = errors.New("the certificate of the store, or of its authority, has ended or is not valid yet")
	ErrNoAccess    = errors.New("the store wants another certificate of this host")
	ErrScheme      = errors.New("the store may speak TLS where it is asked without, or the reverse")
	ErrUser        = errors.New("the store refuses the user")
)

// The Reasons of those rejections and limits of the RIB that are not logged like the others.
const (
	// ReasonOwnMAC is that of leases that have a MAC of this node.
	ReasonOwnMAC = "own_mac"
	// ReasonNoCommonFamily is that of peers that have no family of the underlay in common with this
	// node, and of a peer's subnet whose packets come over a family that this node lacks.
	ReasonNoCommonFamily = "no_common_family"
	// ReasonContested is that of leases that are older than this node's own and overlap it: other nodes use those.
	ReasonContested = "own_subnet_contested"
	// These are of leases by another network config than this node's: their nodes may well live, and have not taken the new config, or took it first.
	ReasonVNI, ReasonBackendType, ReasonOutside, ReasonFamily = "wrong_vni", "backend_type", "outside_network", "family_disabled"
)

// EntryError says why an entry of the store is not used. Its text is that of Err.
type EntryError struct {
	Key  string // its own, and no other entry's; empty unless ParseKey reads it: then it is safe to print
	Name string // of its node, safe to print; empty: not known
	Err  error
}

// Error implements error.
func (e *EntryError) Error() string { return e.Err.Error() }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *EntryError) Unwrap() error { return e.Err }

// Kind returns the part of an error that stays the same while its cause lasts: a log tells by it whether the
// fault is another one. It is the text; if a store cannot be reached it is the Refusal or else the Reason, as the text
// names whichever endpoint failed last.
func Kind(err error) string {
	if Reason(err) != ReasonUnreachable {
		return err.Error()
	}
	if why := Refusal(err); why != nil {
		return why.Error()
	}
	return ReasonUnreachable
}

// Refusal returns which of ErrUntrusted, ErrOtherName, ErrNotValidNow, ErrNoAccess, ErrScheme and ErrUser an error is; nil: none.
func Refusal(err error) error {
	for _, why := range []error{ErrUntrusted, ErrOtherName, ErrNotValidNow, ErrNoAccess, ErrScheme, ErrUser} {
		if errors.Is(err, why) {
			return why
		}
	}
	return nil
}

// Reason returns the stable id of an error: that of WithReason, or of a sentinel error of this
// package; "other" if it has none.
func Reason(err error) string {
	if with := (*reasonError)(nil); errors.As(err, &with) {
		return with.reason
	}
	if with := (*refusal)(nil); errors.As(err, &with) {
		return with.reason
	}
	for _, known := range [...]struct {
		err    error
		reason string
	}{
		{ErrNoNetwork, "no_network_config"},
		{ErrCloned, "cloned"}, // it is ErrTaken, too
		{ErrTaken, "address_in_use"},
		{ErrNoSubnet, "no_free_subnet"},
		{ErrLost, "lease_lost"},
		{ErrGone, "lease_gone"},
		{ErrNetworkChanged, "network_config_changed"},
		{dataplane.ErrOffLink, "off_link"},
		{dataplane.ErrRouteTaken, "route_taken"},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	if errors.As(err, new(*NetworkError)) {
		return "bad_network_config"
	}
	return "other"
}
