package controltest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

func renewExtends(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	got, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if !l.Expires.IsZero() && !got.Expires.After(l.Expires) {
		t.Errorf("expires at %v, after renewal at %v", l.Expires, got.Expires)
	}
	if got.Subnet != l.Subnet || got.CreateRevision != l.CreateRevision {
		t.Errorf("renewed %+v to %+v", l, got)
	}
	checkStored(t, h, got)
}

func renewAfterExpiry(t *testing.T, h Harness) {
	e, ok := h.(Expirer)
	if !ok {
		t.Log("the harness cannot expire an entry: RenewAfterDeletion is the nearest")
		return
	}
	renewAfter(t, h, func(key string) { e.Expire(t, key) })
}

func renewAfterDeletion(t *testing.T, h Harness) {
	renewAfter(t, h, func(key string) { h.DeleteRaw(t, key) })
}

// renewAfter checks that Renew puts a lease back that has gone, and can go on from there.
func renewAfter(t *testing.T, h Harness, gone func(key string)) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	for range 2 {
		gone(l.Key())
		if _, ok := h.GetRaw(t, l.Key()); ok {
			t.Fatal("the entry is still there")
		}
		got, err := s.Renew(t.Context(), l)
		if err != nil || got.Key() != l.Key() {
			t.Fatalf("renewed as %+v, %v", got, err)
		}
		checkStored(t, h, got)
		l = got
	}
	if err := s.Release(t.Context(), l); err != nil || len(h.Keys(t)) != 0 {
		t.Errorf("release after that: %v, entries %v", err, h.Keys(t))
	}
}

// renewAfterDeletionBesideWideJunk: what no node uses is not a reason to lose a subnet.
func renewAfterDeletionBesideWideJunk(t *testing.T, h Harness) {
	wideJunk(t, h)
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	h.DeleteRaw(t, l.Key())
	got, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	checkStored(t, h, got)
}

// renewAfterDeletionBesideOverlaps: of what overlaps the own subnet, only a lease costs it.
func renewAfterDeletionBesideOverlaps(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24"))
	var err error
	for _, tt := range []struct {
		name, key string
		value     []byte
		lost      bool
	}{
		{"junk in a part", "10.3.5.128-25", []byte("junk"), false},
		{"junk around it", "10.3.4.0-23", []byte("junk"), false},
		{"a lease of no VTEP", "10.3.5.0-25", []byte(`{"PublicIP":"192.168.0.9","PublicIPv6":null}`), false},
		{"another backend's lease", "10.3.5.64-26", []byte(`{"PublicIP":"192.168.0.9","PublicIPv6":null,"BackendType":"udp"}`), false},
		{"a lease of a part", "10.3.5.32-27", foreign(9), true},
	} {
		h.PutRaw(t, tt.key, tt.value)
		h.DeleteRaw(t, l.Key())
		var got control.Lease
		if got, err = s.Renew(t.Context(), l); tt.lost {
			if !errors.Is(err, control.ErrLost) {
				t.Errorf("%s: renewed as %+v, %v, want ErrLost", tt.name, got, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		checkStored(t, h, got)
		l = got
	}
}

// renewAfterTakeover: the lease was gone for a moment, and another node was quicker.
func renewAfterTakeover(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	h.DeleteRaw(t, l.Key())
	_, other := acquire(t, h, 2, l.Subnet)
	if other.Key() != l.Key() {
		t.Fatalf("the other acquired %s, want %s", other.Key(), l.Key())
	}
	if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("renewed as %+v, %v, want ErrLost", got, err)
	}
	checkStored(t, h, other)
	n, vteps := node(1)
	if again, err := s.Acquire(t.Context(), n, vteps); err != nil || again.Subnet == l.Subnet {
		t.Errorf("acquired %+v, %v after the loss", again, err)
	}
	checkStored(t, h, other)
}

// renewAfterOverwrite: flanneld's unconditional Put (facts D19).
func renewAfterOverwrite(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	h.PutRaw(t, l.Key(), foreign(2))
	if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
		t.Errorf("renewed as %+v, %v, want ErrLost", got, err)
	}
	if got, _ := h.GetRaw(t, l.Key()); string(got) != string(foreign(2)) {
		t.Errorf("the other's entry became %q", got)
	}
}

// renewAfterJunk: what nobody can read belongs to nobody, and so still to us.
func renewAfterJunk(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	h.PutRaw(t, l.Key(), []byte("junk"))
	got, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	checkStored(t, h, got)
	h.DeleteRaw(t, l.Key()) // and the same in a new entry
	h.PutRaw(t, l.Key(), []byte("junk"))
	if got, err = s.Renew(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	checkStored(t, h, got)
}

func releaseAndAgain(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	watcher, _ := acquire(t, h, 2)
	v := watch(t, watcher)
	v.sees(t, l.Key(), l.Value())
	for range 2 { // what is gone is not an error
		if err := s.Release(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	v.until(t, "deletion", func() bool { return v.deleted[l.Key()] })
	if keys := h.Keys(t); len(keys) != 1 {
		t.Errorf("entries %v, want the other's only", keys)
	}
	n, vteps := node(1)
	if _, err := s.Acquire(t.Context(), n, vteps); err != nil {
		t.Errorf("acquire after release: %v", err)
	}
}

func releaseAfterTakeover(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	h.DeleteRaw(t, l.Key())
	_, other := acquire(t, h, 2, l.Subnet)
	if err := s.Release(t.Context(), l); err != nil && !errors.Is(err, control.ErrLost) {
		t.Errorf("release: %v", err)
	}
	checkStored(t, h, other)
}

// callsObeyContext: a call whose context has ended returns soon, with an error.
func callsObeyContext(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, vteps := node(2)
	calls := map[string]func() error{
		"Network": func() error { _, err := s.Network(ctx); return err },
		"Acquire": func() error { _, err := h.Open(t).Acquire(ctx, n, vteps); return err },
		"Renew":   func() error { _, err := s.Renew(ctx, l); return err },
		"Release": func() error { return s.Release(ctx, l) },
	}
	for name, call := range calls {
		begin := time.Now()
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: %v, want context.Canceled", name, err)
		}
		if d := time.Since(begin); d > deadline/2 {
			t.Errorf("%s took %v", name, d)
		}
	}
}
