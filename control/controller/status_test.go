package controller_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

// peersOf is a Status's peers in words: subnet, state, reason, and since how many seconds.
func peersOf(s *controller.Status) (words []string) {
	for _, p := range s.Peers {
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s %s", p.Subnet, p.State, p.Reason)))
	}
	return words
}

func wantPeers(t *testing.T, c *controller.Controller, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := peersOf(c.Status()); !slices.Equal(got, want) {
		t.Errorf("peers %q, want %q", got, want)
	}
}

// TestStatusOfPeers shows each state, and that Since is when it began.
func TestStatusOfPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.plane.setFail("device", errors.New("no device"))
		for i := 2; i <= 4; i++ {
			b.memory.PutRaw(t, fmt.Sprintf("10.3.%d.0-24", i), goodLease(i))
		}
		c := controller.New(b.config(b.memory.Open(t)))
		if s := c.Status(); s == nil || s.MTU != 1450 || s.Held || len(s.Peers) != 0 {
			t.Fatalf("before Run: %+v", s)
		}
		b.run(c)
		wantPeers(t, c, "10.3.2.0/24 unknown not_attempted", "10.3.3.0/24 unknown not_attempted", "10.3.4.0/24 unknown not_attempted")
		if s := c.Status(); s.SyncFault.Reason != "other" || s.SyncFault.Err != "no device" || s.Ready || !s.Held {
			t.Errorf("device away: %+v", s)
		}
		b.plane.setFail("192.168.0.3", errors.New("refused"))
		time.Sleep(time.Minute)
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 failed not_programmed", "10.3.4.0/24 up")
		before := c.Status()
		if before.SyncFault != (controller.Fault{}) || !before.Ready || !strings.Contains(before.Peers[1].Err, "refused") {
			t.Errorf("device back: %+v", before)
		}
		b.memory.PutRaw(t, "10.3.5.0-24", goodLease(5))
		b.memory.PutRaw(t, "10.3.2.0-25", goodLease(6))
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 failed not_programmed", "10.3.4.0/24 up", "10.3.5.0/24 up", "10.3.2.0/25 refused overlaps_older")
		now := c.Status()
		for i, p := range before.Peers {
			if now.Peers[i].Since != p.Since {
				t.Errorf("%s is %s since %v, was since %v", p.Subnet, p.State, now.Peers[i].Since, p.Since)
			}
		}
		if !now.Peers[3].Since.Equal(time.Now()) || now.Stats.Peers != 4 || now.Stats.Rejected != 1 {
			t.Errorf("new peer %+v, %+v", now.Peers[3], now.Stats)
		}
		if len(before.Peers) != 3 {
			t.Error("an earlier Status was changed")
		}
		b.plane.setFail("", nil)
		time.Sleep(time.Minute)
		b.memory.DeleteRaw(t, "10.3.2.0-25")
		time.Sleep(time.Second)
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 up", "10.3.4.0/24 up", "10.3.5.0/24 up")
		if got := c.Status().Peers[1].Since; !got.After(before.Peers[1].Since) {
			t.Errorf("up since %v", got)
		}
	})
}

// TestStatusOfLostStore: peers that only the RIB has are kept for a minute.
func TestStatusOfLostStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for i := 2; i <= 4; i++ {
			b.memory.PutRaw(t, fmt.Sprintf("10.3.%d.0-24", i), goodLease(i))
		}
		updates := make(chan control.Update)
		store := b.memory.Open(t)
		c := controller.New(b.config(&watchStore{Store: store, updates: []chan control.Update{updates}}))
		b.run(c)
		synctest.Wait()
		full := <-store.Watch(t.Context()) // with the own lease, 10.3.1.0/24
		updates <- full
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 up", "10.3.4.0/24 up")
		updates <- control.Update{Reset: true}
		wantPeers(t, c, "10.3.2.0/24 kept lease_missing", "10.3.3.0/24 kept lease_missing", "10.3.4.0/24 kept lease_missing")
		updates <- control.Update{Leases: full.Leases[1:3]}
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 up", "10.3.4.0/24 kept lease_missing")
		time.Sleep(2 * time.Minute)
		wantPeers(t, c, "10.3.2.0/24 up", "10.3.3.0/24 up")
	})
}

// TestStatusOfEntries: each fault of an entry has a stable reason, and began once.
func TestStatusOfEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.PutRaw(t, "garbage", []byte("{}"))
		c := controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		first := c.Status()
		time.Sleep(time.Minute)
		b.memory.PutRaw(t, "10.3.9.0-24", []byte("junk\n"))
		for key, value := range map[string][]byte{"10.3.2.0-24": []byte(strings.ReplaceAll(string(goodLease(2)), "vxlan", "udp")), "10.9.3.0-24": goodLease(3)} {
			b.memory.PutRaw(t, key, value)
		}
		synctest.Wait()
		s := c.Status()
		var got []string
		for _, e := range slices.Concat(s.Bad, s.Rejected) {
			got = append(got, e.Key+" "+e.Reason)
		}
		want := []string{"10.3.9.0-24 bad_value", "garbage bad_key", "10.3.2.0-24 backend_type", "10.9.3.0-24 outside_network"}
		if !slices.Equal(got, want) {
			t.Errorf("entries %q, want %q", got, want)
		}
		if s.Bad[1].Since != first.Bad[0].Since || !s.Bad[0].Since.Equal(time.Now()) {
			t.Errorf("bad since %v and %v", s.Bad[0].Since, s.Bad[1].Since)
		}
		b.memory.DeleteRaw(t, "garbage")
		synctest.Wait()
		if s := c.Status(); len(s.Bad) != 1 || s.Stats.Bad != 1 || s.Stats.BadUpdates != 2 {
			t.Errorf("after the key is gone: %+v, %+v", s.Bad, s.Stats)
		}
	})
}

// TestStatusOfLease: why a node has no lease, why it is not renewed, that it is lost or given back: each
// is published.
func TestStatusOfLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var published atomic.Int32
		cfg := b.config(b.memory.Open(t))
		cfg.Published = func() { published.Add(1) }
		c := controller.New(cfg)
		expect := func(when string, held bool, reason string) {
			t.Helper()
			synctest.Wait()
			if s := c.Status(); s.Held != held || s.LeaseFault.Reason != reason {
				t.Errorf("%s: held %v, fault %+v", when, s.Held, s.LeaseFault)
			}
			if published.Swap(0) == 0 {
				t.Errorf("%s: not published", when)
			}
		}
		b.memory.SetDown(errors.New("connection refused"))
		b.run(c)
		expect("store away", false, "other")
		since := c.Status().LeaseFault.Since
		time.Sleep(time.Minute)
		expect("still away", false, "other")
		if got := c.Status().LeaseFault.Since; got != since {
			t.Errorf("since %v, was since %v", got, since)
		}
		b.memory.SetDown(nil)
		time.Sleep(10 * time.Second)
		expect("acquired", true, "")
		b.memory.SetDown(errors.New("connection refused"))
		time.Sleep(23 * time.Hour)
		expect("not renewed", true, "other")
		b.memory.SetDown(nil)
		time.Sleep(time.Hour)
		expect("renewed", true, "")
		lost := c.Status().Lease
		b.memory.PutRaw(t, lost.Key(), goodLease(2))
		time.Sleep(time.Minute)
		expect("another one", true, "")
		if s := c.Status(); s.Lease.Subnet == lost.Subnet || s.Stats.Losses != 1 || s.Stats.RenewFails == 0 || s.Stats.Renewals != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestStatusOfDrain: the lease is named until the end.
func TestStatusOfDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c := controller.New(b.config(b.memory.Open(t)))
		b.run(c)
		synctest.Wait()
		if err := c.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := c.Status(); !s.Released || !s.Lease.Subnet.IsValid() {
			t.Errorf("%+v", s)
		}
	})
}
