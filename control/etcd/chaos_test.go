package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// TestConnectionsCutAtRandom lets nodes acquire, renew and release in a network that
// is short of subnets, while connections are cut and entries expire at random. Then
// it reads the whole history: no node ever has two entries, and no entry ever goes
// from one node to another but by its end. OVERLAYD_SEED repeats the choices of a run.
func TestConnectionsCutAtRandom(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(`{"Network":"10.5.0.0/20","SubnetMin":"10.5.0.0"}`)) // 16 subnets
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("OVERLAYD_SEED"); given != "" {
		if _, err := fmt.Sscan(given, &seed); err != nil {
			t.Fatalf("OVERLAYD_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	const nodes, enough = 18, 20
	var acquired atomic.Int64
	for i := range nodes {
		s := c.open(t)
		wg.Go(func() { live(ctx, s, i, rand.New(rand.NewPCG(seed, uint64(i))), &acquired) })
	}
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(seed, nodes))
		for ctx.Err() == nil {
			quiet := 20 * time.Millisecond
			if rng.IntN(10) == 0 {
				quiet = time.Second // or a machine that is busy gets nothing done at all
			}
			time.Sleep(time.Duration(rng.Int64N(int64(quiet)))) // the fault's rate, not a synchronisation
			c.proxy.cut()
			if keys := c.Keys(t); len(keys) > 0 {
				e := c.entry(t, keys[rng.IntN(len(keys))])
				_, _ = c.client.Revoke(t.Context(), clientv3.LeaseID(e.lease)) // it may be gone by now
			}
		}
	})
	time.Sleep(3 * time.Second) // how long the faults last at least
	eventually(t, "enough acquisitions", func() bool { return acquired.Load() >= enough })
	cancel()
	wg.Wait()
	t.Logf("%d acquisitions", acquired.Load())
	checkHistory(t, c)
}

// live acquires, renews and releases until ctx ends, and counts how often it acquired.
func live(ctx context.Context, s control.Store, i int, rng *rand.Rand, acquired *atomic.Int64) {
	n, vteps := node(i)
	for ctx.Err() == nil {
		l, err := s.Acquire(ctx, n, vteps)
		if err != nil {
			continue
		}
		acquired.Add(1)
		n.Previous = nil
		for range rng.IntN(20) {
			if renewed, err := s.Renew(ctx, l); err == nil {
				l = renewed
			} else if errors.Is(err, control.ErrLost) {
				break
			}
		}
		if rng.IntN(2) == 0 {
			_ = s.Release(ctx, l) // if the connection is cut, the next Acquire finds it
		}
	}
}

// checkHistory replays every change of an entry since the first revision.
func checkHistory(t *testing.T, c *cluster) {
	t.Helper()
	end := c.do(t, clientv3.OpGet("x")).Get().Header.Revision
	c.PutRaw(t, "end", nil) // the last event of the history
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	owner, entryOf := map[string]string{}, map[string]string{}
	events := 0
	for resp := range c.client.Watch(ctx, prefix+"/subnets/", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		if err := resp.Err(); err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			key := strings.TrimPrefix(string(e.Kv.Key), prefix+"/subnets/")
			if e.Kv.ModRevision > end {
				t.Logf("%d events", events)
				return
			}
			events++
			if e.Type == clientv3.EventTypeDelete {
				delete(entryOf, owner[key])
				delete(owner, key)
				continue
			}
			l, err := control.ParseLease(key, e.Kv.Value)
			if err != nil {
				t.Fatal(err)
			}
			ip := l.PublicIP.String()
			if was, ok := owner[key]; ok && was != ip {
				t.Errorf("revision %d: %s goes from %s to %s", e.Kv.ModRevision, key, was, ip)
			}
			if other, ok := entryOf[ip]; ok && other != key {
				t.Errorf("revision %d: %s has %s and gets %s", e.Kv.ModRevision, ip, other, key)
			}
			owner[key], entryOf[ip] = ip, key
		}
	}
}

// TestHalfOpenConnection makes a connection a black hole (facts F14).
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	updates := watch(t, c.open(t))
	tb := table{}
	c.PutRaw(t, key(1), value(1))
	follow(t, c, updates, tb)
	c.proxy.freeze()
	c.PutRaw(t, key(2), value(2))
	begin := time.Now()
	follow(t, c, updates, tb)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("found after %s, want 15s", took)
	}
}
