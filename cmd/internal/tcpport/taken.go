package tcpport

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// TakenError says that somebody else has a port, and who.
type TakenError struct {
	Port    uint16
	Program string   // as in `nginx (pid 12)`; empty if this process cannot see whose it is
	Users   []string // uids of those who have it; empty if nobody is found
	Listens bool     // they listen there; a socket can also have a port without listening

	err error // of the kernel
}

func newTaken(err error, at netip.AddrPort) *TakenError {
	e := &TakenError{Port: at.Port(), err: err}
	holders := sockets("tcp", at)
	if e.Listens = len(holders) > 0; !e.Listens {
		holders = silent(at)
	}
	e.Program = program(holders)
	e.Users = slices.Compact(slices.Sorted(maps.Values(holders)))
	return e
}

// Error implements error.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%v: %s has it", e.err, cmp.Or(e.Program, unseen))
}

const unseen = "a process that this one cannot see"

// Unwrap returns the error of the kernel.
func (e *TakenError) Unwrap() error { return e.err }

// Holder says who has the port, as far as that is known.
func (e *TakenError) Holder() string {
	if len(e.Users) == 0 {
		return cmp.Or(e.Program, unseen)
	}
	return fmt.Sprintf("%s of user %s", cmp.Or(e.Program, "a process"), strings.Join(e.Users, ", "))
}

// UIDs returns the uid of the holder, or of all if there are several; it is empty if nobody is found.
func (e *TakenError) UIDs() string { return strings.Join(e.Users, ",") }

// IsOurs reports whether root or the user of this process listens at the port: then the flags of the one or the other are
// wrong. No other user can bring that about, however he takes the port.
func (e *TakenError) IsOurs() bool {
	return e.Listens && (slices.Contains(e.Users, "0") || slices.Contains(e.Users, strconv.Itoa(os.Geteuid())))
}
