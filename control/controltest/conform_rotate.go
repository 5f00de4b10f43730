package controltest

import (
	"errors"
	"testing"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// acquireAfterRotation: hosts have come to each other's addresses. They were killed, so that the
// address of each one still has the sign of life of another.
func acquireAfterRotation(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	for count := 2; count <= 4; count++ {
		base := 10 * count
		had := make([]control.Lease, count)
		for i := range had {
			_, had[i] = acquire(t, h, base+i)
		}
		waiting := count
		for round := 0; waiting > 0 && round < 2; round++ { // in the first all but the last one may wait for the next host
			waiting = 0
			for i, old := range had {
				n, vteps := moved(base+i, base+(i+1)%count, encap.MAC{}, old.Subnet)
				l, err := h.Open(t).Acquire(t.Context(), n, vteps)
				switch {
				case errors.Is(err, control.ErrTaken):
					waiting++
				case err != nil || l.Subnet != old.Subnet || l.Backend.MAC != vteps[0].MAC:
					t.Fatalf("%d hosts: %s acquired %+v, %v, want %s", count, n.Name, l, err, old.Subnet)
				default:
					checkStored(t, h, l)
				}
			}
		}
		if waiting > 0 {
			t.Errorf("%d of %d hosts wait for an address that another one has left", waiting, count)
		}
	}
	if keys := h.Keys(t); len(keys) != 2+3+4 {
		t.Errorf("entries %v", keys)
	}
}

// acquireLeftAddress: an address that a host has left is free at once, however often it changes hands.
func acquireLeftAddress(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	_, first := acquire(t, h, 1)
	n, vteps := moved(1, 200, encap.MAC{}, first.Subnet)
	if _, err := h.Open(t).Acquire(t.Context(), n, vteps); err != nil { // killed before
		t.Fatal(err)
	}
	n, vteps = moved(2, 1, encap.MAC{})
	next := h.Open(t)
	second, err := next.Acquire(t.Context(), n, vteps)
	if err != nil || second.Subnet == first.Subnet || second.Backend.MAC == dataplane.MAC(addr(200), 7) {
		t.Fatalf("the next host acquired %+v, %v", second, err)
	}
	for _, step := range []struct{ i, from, to int }{{2, 1, 201}, {1, 200, 1}, {1, 1, 200}, {2, 201, 1}} {
		l := map[int]control.Lease{1: first, 2: second}[step.i]
		n, vteps := moved(step.i, step.to, encap.MAC{}, l.Subnet)
		n.Former = append(n.Former, addr(step.from))
		if got, err := h.Open(t).Acquire(t.Context(), n, vteps); err != nil || got.Subnet != l.Subnet || got.Backend.MAC != vteps[0].MAC {
			t.Errorf("host %d from %d to %d: acquired %+v, %v, want %s", step.i, step.from, step.to, got, err, l.Subnet)
		}
	}
}

// renewWithAnotherMAC: the entry says it from then on, as the same entry.
func renewWithAnotherMAC(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s, old := acquire(t, h, 1)
	for _, mac := range []encap.MAC{{2, 1}, {2, 2}, old.Backend.MAC} {
		l := old
		l.Backend.MAC = mac
		got, err := s.Renew(t.Context(), l)
		if err != nil || got.Backend.MAC != mac || got.CreateRevision != old.CreateRevision {
			t.Fatalf("renewed as %+v, %v", got, err)
		}
		checkStored(t, h, got)
		if old, err = s.Renew(t.Context(), got); err != nil || old.ModRevision != got.ModRevision {
			t.Errorf("renewed once more as %+v, %v, want %+v", old, err, got)
		}
	}
}
