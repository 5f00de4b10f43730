package control

import (
	"errors"
	"sync"
	"time"
)

// StoreHealth keeps the StoreStatus of a Store, which reports each answer to it. The zero
// value, with Kind and Endpoint set, has not heard from the store yet. It may be used by several goroutines.
type StoreHealth struct {
	Kind     string // see StoreStatus
	Endpoint string // see StoreStatus

	mu     sync.Mutex
	status StoreStatus
}

// Answered notes an answer of the store. revision is the one it was given at, 0 if that is not
// known; err is what the store refused, if it did.
func (h *StoreHealth) Answered(revision int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.LastAnswer = time.Now()
	if revision > 0 {
		h.status.Revision = revision
	}
	h.set(true, err)
}

// Heard notes an answer that any user gets, at a revision, 0 if that is not known. If the store has refused the user of this node, that
// stands until it answers a question of that user.
func (h *StoreHealth) Heard(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.LastAnswer = time.Now()
	if revision > 0 {
		h.status.Revision = revision
	}
	if !h.status.Connected || !h.status.Refusal {
		h.set(true, nil)
	}
}

// Failed notes that the store could not be reached.
func (h *StoreHealth) Failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(false, err)
}

// set notes a change. Another text of an error that lasts is not one.
func (h *StoreHealth) set(connected bool, err error) {
	if changed := connected != h.status.Connected || (err == nil) != (h.status.Err == ""); changed || h.status.Since.IsZero() {
		h.status.Since = time.Now()
	}
	h.status.Connected, h.status.Err = connected, ""
	h.status.Refusal = Refusal(err) != nil
	h.status.Untrusted = errors.Is(err, ErrUntrusted) || errors.Is(err, ErrNoAccess)
	if err != nil {
		h.status.Err = Printable(err.Error(), FaultBytes)
	}
}

// Status returns how the store is. A Store embeds it to be a StoreReporter.
func (h *StoreHealth) Status() StoreStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.status
	s.Kind, s.Endpoint = h.Kind, h.Endpoint
	return s
}
