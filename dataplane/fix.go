package dataplane

import (
	"cmp"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

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

// FixOf returns what to do about an error: more of a resource that has run out, whatever else there is to do, or else as WithFix was
// told; empty if nobody has said it.
func FixOf(err error) string {
	if fix := shortage(err); fix != "" {
		return fix
	}
	if with := (*fixError)(nil); errors.As(err, &with) {
		return with.fix
	}
	return ""
}

// FixOr returns what to do about an error if a resource has run out; else fix, which is what usually helps.
func FixOr(err error, fix string) string { return cmp.Or(shortage(err), fix) }

// shortage returns how to get more of a resource that has run out; empty if that is not the cause.
func shortage(err error) string {
	path := (*fs.PathError)(nil)
	switch {
	case errors.Is(err, unix.EMFILE):
		return "raise the limit of open files of this process to 1024 or more: LimitNOFILE= of its systemd unit, docker run --ulimit nofile=, or ulimit -Hn"
	case errors.Is(err, unix.ENFILE):
		return "raise the limit of open files of this host: sysctl fs.file-max"
	case errors.Is(err, unix.ENOMEM):
		return "give this process more memory, or free some on this host: MemoryMax= of its systemd unit, or docker run --memory"
	case errors.Is(err, unix.EAGAIN) && errors.As(err, &path) && path.Op == "fork/exec": // else it means that the call would block
		return "raise the limit of processes and threads: TasksMax= of its systemd unit, docker run --pids-limit=, or ulimit -u"
	}
	return ""
}
