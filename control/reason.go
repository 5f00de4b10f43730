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

// Kind returns what stays the same of an error while its cause lasts, by which a log tells whether it is another
// one: its text, but for a store that cannot be reached, whose endpoints take turns in the text.
func Kind(err error) string {
	if Reason(err) == ReasonUnreachable {
		return ReasonUnreachable
	}
	return err.Error()
}

// Reason returns the stable id of an error: that of WithReason, or of a sentinel error of this
// package; "other" if it has none.
func Reason(err error) string {
	if with := (*reasonError)(nil); errors.As(err, &with) {
		return with.reason
	}
	for _, known := range [...]struct {
		err    error
		reason string
	}{
		{ErrNoNetwork, "no_network_config"},
		{ErrTaken, "address_in_use"},
		{ErrNoSubnet, "no_free_subnet"},
		{ErrLost, "lease_lost"},
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
