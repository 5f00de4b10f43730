// Package controltest holds what every control.Store must do, as one suite:
// [Conform], or [ConformAssigned] if others give out the subnets. It also holds
// [Memory], a Store in memory that passes it.
//
// A Store's own test calls
//
//	controltest.Conform(t, func(t testing.TB) controltest.Harness { ... })
//
// and the suite makes a fresh, empty Harness for each of its cases.
package controltest

import (
	"testing"

	"github.com/overlayd/overlayd/control"
)

// Harness is one empty store and the raw access to it that the suite needs. Its
// methods fail tb themselves. They may be called from several goroutines.
type Harness interface {
	// Open returns the Store of one node. Two of them share nothing but the data:
	// each is its own connection and its own sign of life. The harness closes it
	// when tb ends.
	Open(tb testing.TB) control.Store
	// SetConfig writes the network config, or removes it if text is nil.
	SetConfig(tb testing.TB, text []byte)
	// PutRaw writes an entry below the prefix of all leases as some other program
	// would, without a right that expires. key is what stands after
	// `<prefix>/subnets/`.
	PutRaw(tb testing.TB, key string, value []byte)
	// DeleteRaw removes an entry, whoever has it.
	DeleteRaw(tb testing.TB, key string)
	// GetRaw returns an entry's value.
	GetRaw(tb testing.TB, key string) (value []byte, ok bool)
	// Keys returns the keys of all entries below the prefix of all leases.
	Keys(tb testing.TB) []string
}

// Expirer is a Harness that can end the right to an entry now, as its expiry
// would: the entry vanishes.
type Expirer interface {
	Expire(tb testing.TB, key string)
}

// Reserver is a Harness whose store has entries that expire and others, which are
// reservations: those of PutRaw.
type Reserver interface {
	// PutLeased is PutRaw with a right that expires, as another daemon's entry has.
	PutLeased(tb testing.TB, key string, value []byte)
	// Expires reports whether an entry does.
	Expires(tb testing.TB, key string) bool
}

// Disconnecter is a Harness that can put a gap into every running Watch.
// It returns when whatever is done next may fall into the gap.
type Disconnecter interface {
	Disconnect(tb testing.TB)
}

// Compacter is a Harness whose store forgets old revisions when told.
type Compacter interface {
	Compact(tb testing.TB)
}
