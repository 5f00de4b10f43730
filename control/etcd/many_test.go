package etcd_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// TestTooManyLeases: of many leases that nobody can use few are told, whether they are there before the daemon or come later. The others are
// counted and said, and a host that joins is seen by those that know them and by those that do not.
func TestTooManyLeases(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	first := acquire(t, c.open(t), 1)
	before := watching(t, c.open(t))
	before.sees(t, first)
	value := string(first.Value())
	const many = 5000
	for i := 0; i < many; i += 100 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s/subnets/11.%d.%d.0-24", prefix, (i+j)>>8, (i+j)&0xff), value))
		}
		if _, err := c.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	second := acquire(t, c.open(t), 2)
	for name, w := range map[string]*watched{"before": before, "after": watching(t, c.open(t))} {
		w.sees(t, first, second)
		if told := len(w.leases); told+w.omitted != many+2 || told > 2010 {
			t.Errorf("who watches from %s them on is told %d, and of %d others, want %d in all", name, told, w.omitted, many+2)
		}
	}
	if text := log.String(); !strings.Contains(text, "too many leases in etcd") || !strings.Contains(text, "fix=") {
		t.Errorf("the log says:\n%s", text)
	}
}

// watched is what a Watch has told.
type watched struct {
	updates <-chan control.Update
	leases  map[string]control.Lease
	omitted int
}

func watching(t *testing.T, s control.Store) *watched {
	return &watched{updates: s.Watch(t.Context()), leases: map[string]control.Lease{}}
}

// sees waits until all of some leases were told.
func (w *watched) sees(t *testing.T, want ...control.Lease) {
	t.Helper()
	for slices.ContainsFunc(want, func(l control.Lease) bool { _, ok := w.leases[l.Key()]; return !ok }) {
		u := receive(t, w.updates)
		if u.Reset {
			clear(w.leases)
		}
		for _, l := range u.Leases {
			w.leases[l.Key()] = l
		}
		for _, key := range u.Deleted {
			delete(w.leases, key)
		}
		w.omitted = u.Omitted
	}
}
