package controltest

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
)

// reservation is the value of a reservation for the i-th node.
func reservation(i int) []byte {
	n, _ := node(i)
	return control.Lease{PublicIP: n.PublicIP}.Value()
}

func reserver(t *testing.T, h Harness) (r Reserver, ok bool) {
	if r, ok = h.(Reserver); !ok {
		t.Log("the store has no reservations")
	}
	return r, ok
}

// reserveForOther: nobody else gets what is reserved, whoever it is for.
func reserveForOther(t *testing.T, h Harness) {
	if _, ok := reserver(t, h); !ok {
		return
	}
	h.SetConfig(t, []byte(config))
	h.PutRaw(t, "10.3.5.0-24", reservation(9))
	if _, l := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24")); l.Key() == "10.3.5.0-24" {
		t.Error("acquired what is reserved for another")
	}
	if got, _ := h.GetRaw(t, "10.3.5.0-24"); string(got) != string(reservation(9)) {
		t.Errorf("the reservation became %q", got)
	}
}

// reserveLife: a reservation outlives whatever its owner does.
func reserveLife(t *testing.T, h Harness) {
	r, ok := reserver(t, h)
	if !ok {
		return
	}
	h.SetConfig(t, []byte(config))
	const key = "10.3.5.0-24"
	h.PutRaw(t, key, reservation(1))
	check := func(when string, l control.Lease, err error) {
		t.Helper()
		if err != nil || l.Key() != key || !l.Expires.IsZero() || r.Expires(t, key) || len(h.Keys(t)) != 1 {
			t.Fatalf("%s: %+v, %v, the entry expires: %v, entries %v", when, l, err, r.Expires(t, key), h.Keys(t))
		}
		checkStored(t, h, l)
	}
	n, vteps := node(1)
	n.Previous = []netip.Prefix{netip.MustParsePrefix("10.3.77.0/24")}
	s := h.Open(t)
	l, err := s.Acquire(t.Context(), n, vteps)
	check("acquired", l, err)
	created := l.CreateRevision
	l, err = s.Renew(t.Context(), l)
	check("renewed", l, err)
	s = h.Open(t)
	vteps[0].MAC[5] ^= 1
	l, err = s.Acquire(t.Context(), n, vteps)
	check("after a restart", l, err)
	h.PutRaw(t, key, []byte("junk"))
	l, err = s.Renew(t.Context(), l)
	check("after junk", l, err)
	h.PutRaw(t, key, reservation(1))
	l, err = s.Renew(t.Context(), l)
	check("reserved once more", l, err)
	for range 2 {
		if err := s.Release(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if got, _ := h.GetRaw(t, key); string(got) != string(reservation(1)) || r.Expires(t, key) {
			t.Errorf("after release the entry is %q", got)
		}
	}
	l, err = h.Open(t).Acquire(t.Context(), n, vteps)
	check("acquired again", l, err)
	if l.CreateRevision != created {
		t.Errorf("created at %d, was at %d", l.CreateRevision, created)
	}
}

// reserveLive: a lease becomes a reservation, and a reservation a lease, under its owner.
func reserveLive(t *testing.T, h Harness) {
	r, ok := reserver(t, h)
	if !ok {
		return
	}
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	watcher := watch(t, h.Open(t))
	for _, tt := range []struct {
		name    string
		touch   func()
		expires bool
	}{
		{"reserved", func() { h.PutRaw(t, l.Key(), l.Value()) }, false},
		{"reserved by public IP", func() { h.PutRaw(t, l.Key(), reservation(1)) }, false},
		{"leased by somebody", func() { r.PutLeased(t, l.Key(), l.Value()) }, true},
		{"reserved again", func() { h.PutRaw(t, l.Key(), l.Value()) }, false},
		{"deleted", func() { h.DeleteRaw(t, l.Key()) }, true},
	} {
		tt.touch()
		got, err := s.Renew(t.Context(), l)
		if err != nil || got.Key() != l.Key() || got.Expires.IsZero() == tt.expires || r.Expires(t, l.Key()) != tt.expires {
			t.Fatalf("%s: renewed %+v, %v, the entry expires: %v", tt.name, got, err, r.Expires(t, l.Key()))
		}
		checkStored(t, h, got)
		watcher.until(t, "the renewed entry", func() bool {
			seen := watcher.leases[got.Key()]
			return seen.ModRevision == got.ModRevision && seen.Handle == got.Handle && string(seen.Value()) == string(got.Value())
		})
		l = got
	}
	lost := func(when string, l control.Lease) {
		t.Helper()
		h.PutRaw(t, l.Key(), reservation(9))
		if got, err := s.Renew(t.Context(), l); !errors.Is(err, control.ErrLost) {
			t.Errorf("%s: renewed %+v, %v, want ErrLost", when, got, err)
		}
	}
	lost("reserved for another", l)
	h.PutRaw(t, l.Key(), l.Value())
	mine, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	lost("reserved, and then for another", mine)
	if got, _ := h.GetRaw(t, l.Key()); string(got) != string(reservation(9)) {
		t.Errorf("the other's reservation became %q", got)
	}
}

// reserveBesideLease: a node keeps the lease that it had when somebody reserves another subnet for it, and gets that when it has lost the lease.
func reserveBesideLease(t *testing.T, h Harness) {
	if _, ok := reserver(t, h); !ok {
		return
	}
	h.SetConfig(t, []byte(config))
	_, old := acquire(t, h, 1, netip.MustParsePrefix("10.3.5.0/24"))
	h.PutRaw(t, "10.3.6.0-24", reservation(1))
	h.PutRaw(t, "10.4.6.0-24", reservation(1)) // outside the network, and yet an operator's
	_, l := acquire(t, h, 1, old.Subnet)
	if l.Key() != old.Key() || len(h.Keys(t)) != 3 {
		t.Errorf("acquired %s, entries %v", l.Key(), h.Keys(t))
	}
	checkStored(t, h, l)
	h.DeleteRaw(t, old.Key())
	if _, l = acquire(t, h, 1, old.Subnet); l.Key() != "10.3.6.0-24" {
		t.Errorf("without its lease: acquired %s, entries %v", l.Key(), h.Keys(t))
	}
}

// reserveFamilies: by the IPv6 address of a node that has no other, in a network of both.
func reserveFamilies(t *testing.T, h Harness) {
	r, ok := reserver(t, h)
	if !ok {
		return
	}
	for i, tt := range []struct{ config, key, vteps string }{
		{config6, "0.0.0.0-0&fd10:6:0:5::-64", "6"},
		{configDual, "10.3.5.0-24&fd10:6:0:6::-64", "46"},
		{config, "10.3.7.0-24", "6"},
	} {
		h.SetConfig(t, []byte(tt.config))
		n, vteps := only(i+1, tt.vteps)
		h.PutRaw(t, tt.key, control.Lease{PublicIP: n.PublicIP, PublicIPv6: n.PublicIPv6}.Value())
		l, err := h.Open(t).Acquire(t.Context(), n, vteps)
		if err != nil || l.Key() != tt.key || r.Expires(t, tt.key) {
			t.Errorf("%s: acquired %+v, %v, the entry expires: %v", tt.key, l, err, r.Expires(t, tt.key))
		}
	}
}
