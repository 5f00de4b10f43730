package etcd

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
)

// TestKeysOfClonesAreBounded: however many keys a clone seems to have, few are remembered, and it is gone with the last of them.
func TestKeysOfClonesAreBounded(t *testing.T) {
	var l cloneList
	const keys = 1 << 16
	for i := range keys {
		l.saw(fmt.Sprint("key ", i), control.Clone{Host: "evil", PublicIP: netip.MustParseAddr("192.0.2.9"), Boot: fmt.Sprint(i % (2 * maxClones))})
	}
	if n := len(l.keys()); n == 0 || n > maxClones*maxCloneKeys {
		t.Errorf("%d keys are remembered, want at most %d", n, maxClones*maxCloneKeys)
	}
	for i := range keys {
		l.leave(fmt.Sprint("key ", i))
	}
	for _, c := range l.list() {
		if c.Gone.IsZero() {
			t.Errorf("%+v is not gone", c)
		}
	}
	if n := len(l.list()); n != maxClones {
		t.Errorf("%d clones, want %d", n, maxClones)
	}
}

// TestLooksAreBounded: of many keys at once that seem to be of clones few are read. Questions that are not read are answered, too, and
// a clone that is known is not gone while its keys are there.
func TestLooksAreBounded(t *testing.T) {
	const many = 1 << 10
	for name, tt := range map[string]struct {
		key   string // below the records
		asked int64  // the revision of the last question
	}{
		"questions":            {"192.0.0.1/%x", many},
		"questions to another": {"192.0.0.2/%x", 0},
		"records":              {"fd00::%x", 0},
	} {
		s, err := Open(t.Context(), Config{Endpoints: []string{"http://127.0.0.1:1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.etcd.Close() }) // there is no etcd, of which Close would take leave
		r := &nodeRecord{store: s, key: s.keys.Node(netip.MustParseAddr("192.0.0.1")), node: etcdkeys.Record{ID: "id-1", Boot: "a", NetNS: 7}, look: make(chan struct{}, 1)}
		s.node = r
		see := func(kvs ...*mvccpb.KeyValue) {
			var events []*mvccpb.Event
			for _, kv := range kvs {
				events = append(events, &mvccpb.Event{Kv: kv})
			}
			s.sawEvents(t.Context(), events)
		}
		wantGone := func(want bool, when string) {
			t.Helper()
			for _, c := range s.clones.list() {
				if c.Gone.IsZero() == want {
					t.Errorf("%s: %s: clone %s is gone: %t", name, when, c.Boot, !want)
				}
			}
		}
		value := `{"id":"id-1","name":"evil","boot":"%d","netns":3,"x":"` + strings.Repeat("x", etcdkeys.MaxRecord-100) + `"}`
		var kvs, deleted []*mvccpb.KeyValue
		for i := range int64(many) {
			key := fmt.Appendf([]byte(s.keys.Nodes()), tt.key, i+1)
			kvs = append(kvs, &mvccpb.KeyValue{Key: key, Value: fmt.Appendf(nil, value, i), Lease: 1, ModRevision: i + 1})
			deleted = append(deleted, &mvccpb.KeyValue{Key: key})
		}
		see(kvs...)
		clones := s.clones.list()
		if len(clones) != maxClones {
			t.Fatalf("%s: %d clones, want %d", name, len(clones), maxClones)
		}
		if last, err := strconv.Atoi(clones[maxClones-1].Boot); err != nil || last > many/4 {
			t.Errorf("%s: number %d was read (%v), want at most %d", name, last, err, many/4)
		}
		if asked := r.asked.Load(); asked != tt.asked {
			t.Errorf("%s: asked at revision %d, want %d", name, asked, tt.asked)
		}
		see(kvs...)
		wantGone(false, "changed")
		list := s.seeRecords()
		list.add(t.Context(), kvs)
		list.end(many)
		wantGone(false, "listed")
		see(deleted...)
		wantGone(true, "deleted")
	}
}
