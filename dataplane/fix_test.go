package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFixes: a resource that has run out is the cause, whatever else an error has a fix for.
func TestFixes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string // in the fix
	}{
		{nil, "else"},
		{errors.New("other"), "else"},
		{unix.EPERM, "else"},
		{&fs.PathError{Op: "open", Path: "/proc/sys/x", Err: unix.EMFILE}, "LimitNOFILE="},
		{os.NewSyscallError("socket", unix.ENFILE), "fs.file-max"},
		{os.NewSyscallError("netlink", unix.ENOMEM), "MemoryMax="},
		{&fs.PathError{Op: "fork/exec", Path: "/sbin/iptables", Err: unix.EAGAIN}, "TasksMax="},
		{&fs.PathError{Op: "read", Path: "/dev/net/tun", Err: unix.EAGAIN}, "else"},
		{unix.EAGAIN, "else"},
	} {
		if got := FixOr(c.err, "else"); !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
		if c.err == nil {
			continue
		}
		if got := FixOf(fmt.Errorf("set: %w", WithFix(c.err, "else"))); !strings.Contains(got, c.want) {
			t.Errorf("%v, with another fix: %q, want %q", c.err, got, c.want)
		}
		if got := FixOf(errors.Join(WithFix(unix.EPERM, "else"), c.err)); !strings.Contains(got, c.want) {
			t.Errorf("%v, after another error: %q, want %q", c.err, got, c.want)
		}
	}
}
