package controltest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

func watchFirstIsReset(t *testing.T, h Harness) {
	s := h.Open(t)
	empty := watch(t, s) // without a config, too
	empty.until(t, "the first update", func() bool { return empty.resets > 0 })
	if len(empty.leases) != 0 {
		t.Errorf("leases %v in an empty store", empty.leases)
	}
	h.PutRaw(t, "10.3.5.0-24", foreign(1))
	h.PutRaw(t, "10.3.6.0-24", foreign(2))
	v := watch(t, h.Open(t))
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	if len(v.leases) != 2 {
		t.Errorf("the first Reset has %v, want two leases", v.leases)
	}
	empty.sees(t, "10.3.6.0-24", foreign(2))
}

func watchChanges(t *testing.T, h Harness) {
	v := watch(t, h.Open(t))
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	const key = "10.3.5.0-24"
	h.PutRaw(t, key, foreign(1))
	v.sees(t, key, foreign(1))
	created := v.leases[key]
	h.PutRaw(t, key, foreign(2))
	v.sees(t, key, foreign(2))
	if l := v.leases[key]; l.CreateRevision != created.CreateRevision || l.ModRevision <= created.ModRevision {
		t.Errorf("revisions %d, %d after %d, %d", l.CreateRevision, l.ModRevision, created.CreateRevision, created.ModRevision)
	}
	h.DeleteRaw(t, key)
	v.until(t, "deletion", func() bool { return v.deleted[key] })
	h.PutRaw(t, key, foreign(3))
	v.sees(t, key, foreign(3))
	if l := v.leases[key]; l.CreateRevision <= created.CreateRevision {
		t.Errorf("written again it has create revision %d, before %d", l.CreateRevision, created.CreateRevision)
	}
}

func watchOwnLease(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	s := h.Open(t)
	v := watch(t, s)
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	n, vteps := node(1)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatal(err)
	}
	v.sees(t, l.Key(), l.Value())
	if seen := v.leases[l.Key()]; seen.Handle != l.Handle || seen.CreateRevision != l.CreateRevision {
		t.Errorf("acquired %+v, seen %+v", l, seen)
	}
	h.DeleteRaw(t, l.Key())
	v.until(t, "deletion of the own lease", func() bool { return v.deleted[l.Key()] })
}

// watchJunk: what cannot be read is Bad and touches nothing else.
func watchJunk(t *testing.T, h Harness) {
	keys := []string{"garbage", "10.3.9.0", "10.3.9.300-24", "10.3.9.0-24hi", "10.3.9.0-024", "a/b", "10.3.9.0-24/x", "é\x01"}
	values := []string{"x", "{", "null", "[]", `{"PublicIP":7}`, strings.Repeat("[", 20000), strings.Repeat("x", 100_000), ""}
	h.PutRaw(t, "10.3.1.0-24", foreign(1))
	h.PutRaw(t, "10.3.2.0-24", foreign(2))
	h.PutRaw(t, keys[0], foreign(3))
	running := watch(t, h.Open(t))
	running.until(t, "the first update", func() bool { return running.resets > 0 })
	for _, key := range keys {
		h.PutRaw(t, key, foreign(3))
	}
	for i, value := range values {
		h.PutRaw(t, fmt.Sprintf("10.3.%d.0-24", 100+i), []byte(value))
	}
	h.PutRaw(t, "10.3.2.0-24", []byte("broken now"))
	h.PutRaw(t, "10.3.3.0-24", foreign(3))
	fresh := watch(t, h.Open(t))
	for name, v := range map[string]*view{"running": running, "fresh": fresh} {
		v.sees(t, "10.3.3.0-24", foreign(3))
		for _, key := range append([]string{"10.3.2.0-24", "10.3.100.0-24"}, keys...) {
			if v.bad[key] == nil {
				t.Errorf("%s watch: %q is not bad", name, key)
			}
		}
		if len(v.leases) != 2 || len(v.deleted) != 0 || len(v.bad) != len(keys)+len(values)+1 || v.resets != 1 {
			t.Errorf("%s watch: %d leases, %d deleted, %d bad, %d resets", name, len(v.leases), len(v.deleted), len(v.bad), v.resets)
		}
	}
	h.DeleteRaw(t, keys[0]) // must not end the watch
	h.DeleteRaw(t, "10.3.1.0-24")
	running.until(t, "deletion", func() bool { return running.deleted["10.3.1.0-24"] })
}

func watchManyAtOnce(t *testing.T, h Harness) {
	const many = 500
	v := watch(t, h.Open(t))
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	for i := range many {
		h.PutRaw(t, fmt.Sprintf("10.%d.%d.0-24", 4+i>>8, i&255), foreign(i+1))
	}
	v.until(t, "all of them", func() bool { return len(v.leases) == many })
	fresh := watch(t, h.Open(t))
	fresh.until(t, "the first update", func() bool { return fresh.resets > 0 })
	if len(fresh.leases) != many {
		t.Errorf("%d leases in the first Reset, want %d", len(fresh.leases), many)
	}
}

// watchSlowReceiver: who does not receive for a while misses nothing in the end.
func watchSlowReceiver(t *testing.T, h Harness) {
	v := watch(t, h.Open(t))
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	for i := range 300 {
		h.PutRaw(t, "10.3.5.0-24", foreign(i%7+1))
		h.PutRaw(t, fmt.Sprintf("10.4.%d.0-24", i%256), foreign(i%7+1))
	}
	h.PutRaw(t, "10.3.5.0-24", foreign(99))
	h.DeleteRaw(t, "10.4.0.0-24")
	h.PutRaw(t, "10.3.6.0-24", foreign(98))
	v.sees(t, "10.3.6.0-24", foreign(98))
	v.sees(t, "10.3.5.0-24", foreign(99))
	if _, ok := v.leases["10.4.0.0-24"]; ok || len(v.leases) != 257 {
		t.Errorf("%d leases in the end, want 257", len(v.leases))
	}
}

func watchCancel(t *testing.T, h Harness) {
	h.PutRaw(t, "10.3.5.0-24", foreign(1))
	s := h.Open(t)
	for _, receive := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		v := watchContext(ctx, s)
		if receive {
			v.until(t, "the first update", func() bool { return v.resets > 0 })
		}
		cancel()
		timeout := time.After(time.Second)
		for open := true; open; {
			select {
			case _, open = <-v.updates:
			case <-timeout:
				t.Fatal("the channel is open a second after the context has ended")
			}
		}
	}
}

// watchAcrossGap: what happened inside a gap arrives as a Reset.
func watchAcrossGap(t *testing.T, h Harness) {
	d, ok := h.(Disconnecter)
	if !ok {
		t.Log("the harness cannot disconnect")
		return
	}
	acrossGap(t, h, func() { d.Disconnect(t) })
}

func acrossGap(t *testing.T, h Harness, gap func()) {
	for i := range 3 {
		h.PutRaw(t, fmt.Sprintf("10.3.%d.0-24", i+1), foreign(i+1))
	}
	v := watch(t, h.Open(t))
	v.until(t, "the first update", func() bool { return v.resets > 0 })
	gap()
	h.DeleteRaw(t, "10.3.1.0-24")
	h.PutRaw(t, "10.3.2.0-24", foreign(22)) // other attributes (facts D3)
	h.PutRaw(t, "10.3.4.0-24", foreign(4))
	v.sees(t, "10.3.4.0-24", foreign(4))
	v.sees(t, "10.3.2.0-24", foreign(22))
	v.until(t, "the end of the first lease", func() bool { _, ok := v.leases["10.3.1.0-24"]; return !ok })
	h.PutRaw(t, "10.3.5.0-24", foreign(5)) // and the watch lives on
	v.sees(t, "10.3.5.0-24", foreign(5))
	if len(v.leases) != 4 {
		t.Errorf("leases %v, want four", v.leases)
	}
}

func watchAcrossCompaction(t *testing.T, h Harness) {
	c, ok := h.(Compacter)
	if !ok {
		t.Log("the harness cannot compact")
		return
	}
	acrossGap(t, h, func() {
		if d, ok := h.(Disconnecter); ok {
			d.Disconnect(t)
		}
		h.PutRaw(t, "10.3.9.0-24", foreign(9))
		h.DeleteRaw(t, "10.3.9.0-24")
		c.Compact(t)
	})
}
