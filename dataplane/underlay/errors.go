package underlay

import (
	"fmt"
	"strings"
)

// Field is a field of Options, by the name of its flag.
type Field string

// The fields that errors name.
const (
	FieldIface      Field = "--iface"
	FieldIfaceRegex Field = "--iface-regex"
	FieldCanReach   Field = "--iface-can-reach"
	FieldPublicIP   Field = "--public-ip"
	FieldPublicIPv6 Field = "--public-ipv6"
)

// defaultRoute is the Value of an OptionError if no option chose the interface.
const defaultRoute = "default route"

// OptionError tells why an option is invalid, or leads to no usable interface. Field is empty if
// the default route was tried, not an option.
type OptionError struct {
	Field Field
	Value string // quoted if it may hold anything
	Err   error
}

// Error implements error.
func (e *OptionError) Error() string {
	what := e.Value
	if e.Field != "" {
		what = string(e.Field) + " " + e.Value
	}
	return fmt.Sprintf("%s: %v", what, e.Err)
}

// Unwrap returns the reason.
func (e *OptionError) Unwrap() error { return e.Err }

// SelectError means that no usable interface was found.
type SelectError struct {
	Tried   []*OptionError // in order; at least one
	Links   string         // the interfaces that were considered, in words
	Unnamed bool           // no option named an interface: to name one may help
}

// Error implements error.
func (e *SelectError) Error() string {
	var tried []string
	for _, t := range e.Tried {
		tried = append(tried, t.Error())
	}
	return fmt.Sprintf("%s (looked at: %s)", strings.Join(tried, "; "), e.Links)
}

// Unwrap returns the reasons.
func (e *SelectError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, t := range e.Tried {
		errs[i] = t
	}
	return errs
}
