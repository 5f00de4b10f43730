package overlay

import (
	"log/slog"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

// Spec is one line of the list of parts.
type Spec struct {
	Name string // as a person reads it in the status
	Open func() (dataplane.Part, error)
	// Lack says what does not work without the part, if the overlay can go on without it. A part
	// with an empty Lack is required.
	Lack string
	// Apart says that the part needs nothing of those before it: these forget what is gone, whatever fails here.
	Apart bool
}

// PartError is a fault of a part that the overlay can do without.
type PartError struct {
	Part string // its name in the list of parts
	Err  error
}

// Error implements error.
func (e *PartError) Error() string { return e.Part + ": " + e.Err.Error() }

// Unwrap returns the fault itself.
func (e *PartError) Unwrap() error { return e.Err }

// slot is the place of a part in an overlay. If the part is optional, its faults are reported
// once each and degrade the overlay instead of failing it.
type slot struct {
	spec  Spec
	log   *slog.Logger
	attrs func(error) []any // of a log line about an error
	part  dataplane.Part    // nil if it is optional and could not be opened

	mu    sync.Mutex
	fault string    // of an optional part
	since time.Time // when fault became what it is
}

func (s *slot) optional() bool { return s.spec.Lack != "" }

// open opens the part. It returns an error only if the part is required.
func (s *slot) open() error {
	p, err := s.spec.Open()
	if err != nil {
		return s.judge(err)
	}
	s.part = p
	return nil
}

// judge returns an error of a required part, and reports that of an optional one if it is new.
func (s *slot) judge(err error) error {
	if !s.optional() {
		return err
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.fault {
		return nil
	}
	s.fault, s.since = text, time.Now()
	if err != nil {
		s.log.Warn(s.spec.Lack, s.attrs(&PartError{s.spec.Name, err})...)
	}
	return nil
}

// status returns how the part is: degraded if it is optional and has a fault.
func (s *slot) status() dataplane.PartStatus {
	st := dataplane.PartStatus{Name: s.spec.Name}
	if s.part != nil {
		st = s.part.Status()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != "" {
		st.State, st.Err, st.Since = dataplane.StateDegraded, s.fault, s.since
	}
	return st
}
