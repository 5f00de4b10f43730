package etcdchild

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/control/etcd/embedded"
)

// Why the embedded etcd does not run: the Reason of a child.Error, besides those of package child.
const (
	Full     = "disk_full"
	ReadOnly = "disk_read_only"
	Denied   = "denied"
	InUse    = "in_use"
	Listen   = "listen"
	Damaged  = "damaged"
	Members  = "members"
	Aside    = "aside_before"
	PKI      = "certificates"
	Gone     = "data_gone"
)

// asError returns the reason of an error of etcd. What etcd cannot use before it is ready is damaged,
// unless the kernel refused something.
func asError(err error, ready bool) *child.Error {
	e := &child.Error{Text: err.Error()}
	for _, r := range []struct {
		is     error
		reason string
	}{
		{embedded.ErrInUse, InUse}, {embedded.ErrListen, Listen}, {embedded.ErrMembers, Members}, {embedded.ErrAsideBefore, Aside}, {embedded.ErrGone, Gone},
		{unix.ENOSPC, Full}, {unix.EDQUOT, Full}, {unix.EROFS, ReadOnly}, {unix.EACCES, Denied}, {unix.EPERM, Denied},
		{unix.EMFILE, child.ReasonLimits}, {unix.ENFILE, child.ReasonLimits}, {unix.ENOMEM, child.ReasonLimits}, {unix.EAGAIN, child.ReasonLimits}, {unix.EFBIG, child.ReasonLimits},
		{embedded.ErrDamaged, Damaged},
	} {
		if errors.Is(err, r.is) {
			e.Reason = r.reason
			return e
		}
	}
	if !ready && !errors.As(err, new(unix.Errno)) {
		e.Reason = Damaged
	}
	return e
}
