package dataplane

import "errors"

// fixError is an error with what to do about it.
type fixError struct {
	err error
	fix string
}

// Error implements error.
func (e *fixError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *fixError) Unwrap() error { return e.err }

// WithFix returns err with what to do about it, which FixOf returns. The text stays the same.
func WithFix(err error, fix string) error { return &fixError{err, fix} }

// FixOf returns what to do about an error, as WithFix was told; empty if nobody has said it.
func FixOf(err error) string {
	if with := (*fixError)(nil); errors.As(err, &with) {
		return with.fix
	}
	return ""
}
