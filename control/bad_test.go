package control

import (
	"errors"
	"fmt"
	"testing"
)

// TestBadEntriesAreBounded: those that are named are bounded, all are counted, and a key that is mended or deleted counts no more.
func TestBadEntriesAreBounded(t *testing.T) {
	t.Parallel()
	r := NewRIB(Network{})
	wrong := errors.New("wrong")
	const many = 10 * maxBad
	var u, gone Update
	for i := range many {
		key := fmt.Sprint("junk-", i)
		u.Bad = append(u.Bad, BadLease{key, wrong})
		gone.Deleted = append(gone.Deleted, key)
	}
	for range 2 { // and again, written over
		r.Apply(u)
		if _, bad := r.Len(); bad != many || len(r.Bad()) != maxBad {
			t.Errorf("%d entries, %d named, want %d and %d", bad, len(r.Bad()), many, maxBad)
		}
	}
	gone.Deleted = gone.Deleted[:many-1]
	r.Apply(gone)
	if _, bad := r.Len(); bad != 1 || len(r.Bad()) > 1 {
		t.Errorf("%d entries, %d named, want 1", bad, len(r.Bad()))
	}
	r.Apply(Update{Reset: true, Bad: u.Bad[many-1:]})
	if _, bad := r.Len(); bad != 1 || len(r.Bad()) != 1 {
		t.Errorf("listed again: %d entries, %d named, want 1", bad, len(r.Bad()))
	}
}
