package underlay

import (
	"errors"
	"fmt"
	"strings"
)

// Field is the name of a field of Options, for errors. Callers that know the option by
// another name use it with [Describe].
type Field string

// The fields that errors name.
const (
	FieldIface      Field = "Iface"
	FieldIfaceRegex Field = "IfaceRegex"
	FieldCanReach   Field = "CanReach"
	FieldPublicIP   Field = "PublicIP"
	FieldPublicIPv6 Field = "PublicIPv6"
)

// defaultRoute is the Value of an OptionError if no option chose the interface.
const defaultRoute = "default route"

// OptionError says why one option is invalid, or leads to no usable interface. Field is
// empty if no option chose, but the default route; Value then says so.
type OptionError struct {
	Field Field
	Value string // quoted if it may hold anything
	Err   error
}

func (e *OptionError) Error() string { return e.text(fieldName) }

// Unwrap returns the reason.
func (e *OptionError) Unwrap() error { return e.Err }

func (e *OptionError) text(name func(Field) string) string {
	what, why := e.Value, e.Err.Error()
	if e.Field != "" {
		what = name(e.Field) + " " + e.Value
	}
	var inner *OptionError // another option that excludes what this one chose
	if errors.As(e.Err, &inner) {
		why = inner.text(name)
	}
	return fmt.Sprintf("%s: %s", what, why)
}

// SelectError says that no usable interface was found.
type SelectError struct {
	Tried   []*OptionError // in order; at least one
	Links   string         // the interfaces that were considered, in words
	Unnamed bool           // no option named an interface: to name one may help
}

func (e *SelectError) Error() string { return e.text(fieldName) }

// Unwrap returns the reasons.
func (e *SelectError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, t := range e.Tried {
		errs[i] = t
	}
	return errs
}

func (e *SelectError) text(name func(Field) string) string {
	var tried []string
	for _, t := range e.Tried {
		tried = append(tried, t.text(name))
	}
	hint := ""
	if e.Unnamed {
		hint = fmt.Sprintf("; choose one with %s, %s or %s", name(FieldIface), name(FieldIfaceRegex), name(FieldCanReach))
	}
	return fmt.Sprintf("%s (looked at: %s)%s", strings.Join(tried, "; "), e.Links, hint)
}

// Describe returns the text of an error of Select with the fields of Options called by
// other names, such as those of flags.
func Describe(err error, name func(Field) string) string {
	var s *SelectError
	if errors.As(err, &s) {
		return s.text(name)
	}
	var o *OptionError
	if errors.As(err, &o) {
		return o.text(name)
	}
	return err.Error()
}

func fieldName(f Field) string { return string(f) }
