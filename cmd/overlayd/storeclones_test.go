package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestJunkOfClones: while somebody writes what seems to come from hosts with a copy of a node's file, as fast as etcd takes it, a new
// lease is used within 200 ms, and the log is not filled. OVERLAYD_JUNK, as in make test-long, is how many keys there are, and has the
// times checked.
func TestJunkOfClones(t *testing.T) {
	t.Parallel()
	n := int(numberFrom(t, "OVERLAYD_JUNK", 20_000))
	strict := n >= 100_000
	question := func(i int) string { return fmt.Sprintf("192.0.2.2/%x", i) }
	for name, tt := range map[string]struct {
		n     int
		key   func(i int) string // below those of the records
		more  string             // in the value
		taken bool               // each key is deleted again
	}{
		"questions":      {n, question, `"from":"192.0.2.9"`, false},
		"come and go":    {n, question, `"from":"192.0.2.9"`, true},
		"not JSON":       {n, question, `"from`, false},
		"long questions": {n / 10, question, `"from":"192.0.2.9","x":[1` + strings.Repeat(",1", 4000) + "]", false},
		"records":        {n, func(i int) string { return fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&0xff, i&0xff) }, `"v":1`, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLooseCluster(t, 2)
			c.put(storePrefix+"config", testNetwork)
			a, b := c.upPair([2]string{modeKernel, modeUserspace})
			h, nodes := c.hosts[0], storePrefix+"overlayd/nodes/"
			got, err := c.client.Get(t.Context(), nodes+h.addr.String())
			if err != nil || len(got.Kvs) != 1 || h.addr.String() != "192.0.2.2" {
				t.Fatalf("the record of %s: %v, %v", h.addr, got, err)
			}
			var record struct{ ID string }
			if err := json.Unmarshal(got.Kvs[0].Value, &record); err != nil {
				t.Fatal(err)
			}
			grant, err := c.client.Grant(t.Context(), 600)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			slowest := h.slowestBeside(tt.n, func(i int) clientv3.Op {
				if j := i - 100; tt.taken && i/100%2 == 1 {
					return clientv3.OpDelete(nodes + tt.key(j))
				}
				value := fmt.Sprintf(`{"id":%q,"name":"evil","boot":"%d","netns":3,%s}`, record.ID, i, tt.more)
				return clientv3.OpPut(nodes+tt.key(i), value, clientv3.WithLease(grant.ID))
			})
			took := time.Since(began)
			t.Logf("%d keys, %.0f a second: a lease was used after %s at most", tt.n, float64(tt.n)/took.Seconds(), slowest)
			if limit := 200 * time.Millisecond; slowest > limit && strict || slowest > promised(10*limit) {
				t.Errorf("a lease was used after %s, want %s", slowest, limit)
			}
			if lines := linesWith(h.daemon.text(), "copy of this node's file"); float64(lines) > 100*(1+took.Minutes()) {
				t.Errorf("%d lines about clones", lines)
			}
			warmUp(t, a, b)
		})
	}
}
