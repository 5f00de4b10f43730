package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// The watch of leases also shows every change below nodes(). So this node sees at once, without any call, that its record was
// deleted or overwritten, that a clone asks, or that a clone runs under another address.

// seenRecords takes over what a list shows below nodes(), page by page.
type seenRecords struct {
	*Store
	record  *nodeRecord // this node's, when the list began; nil: it had no record
	isThere bool
	gone    map[string]struct{} // keys of clones that were known when the list began, without those that it has shown
}

// seeRecords begins a list of all that there is at a revision.
func (s *Store) seeRecords() *seenRecords {
	record := s.recordOr(func(early map[string]*mvccpb.KeyValue) { clear(early) })
	return &seenRecords{Store: s, record: record, gone: s.clones.keys()}
}

func (s *seenRecords) add(ctx context.Context, kvs []*mvccpb.KeyValue) {
	r := s.recordOr(func(early map[string]*mvccpb.KeyValue) {
		for _, kv := range kvs {
			keepEarly(early, kv)
		}
	})
	if r == nil {
		return
	}
	for _, kv := range kvs {
		if s.sawRecord(ctx, r, kv) {
			delete(s.gone, string(kv.Key))
		}
		s.isThere = s.isThere || string(kv.Key) == r.key
	}
}

// end follows the last page. What the list lacks has gone.
func (s *seenRecords) end(revision int64) {
	if s.record == nil {
		return
	}
	if !s.isThere {
		s.record.saw(&mvccpb.KeyValue{Key: []byte(s.record.key), ModRevision: revision})
	}
	for key := range s.gone {
		s.clones.leave(key)
	}
}

const (
	maxEarly   = 1 << 14 // records that are kept until there is one of this node
	earlyBytes = 1 << 10 // of the value of each: a real one has 300
)

// keepEarly keeps a record, unless there is too much already: then the list that follows in ten minutes finds a clone.
func keepEarly(early map[string]*mvccpb.KeyValue, kv *mvccpb.KeyValue) {
	if _, known := early[string(kv.Key)]; (known || len(early) < maxEarly) && len(kv.Key) <= earlyBytes && len(kv.Value) <= earlyBytes {
		early[string(kv.Key)] = kv
	}
}

// sawEvents takes over what the watch shows of changes.
func (s *Store) sawEvents(ctx context.Context, events []*mvccpb.Event) {
	r := s.recordOr(func(early map[string]*mvccpb.KeyValue) {
		for _, e := range events {
			if key := string(e.Kv.Key); strings.HasPrefix(key, s.keys.Nodes()) {
				keepEarly(early, e.Kv)
			}
			if e.Type == mvccpb.DELETE {
				delete(early, string(e.Kv.Key))
			}
		}
	})
	if r == nil {
		return
	}
	for _, e := range events {
		if bytes.HasPrefix(e.Kv.Key, []byte(s.keys.Nodes())) && !s.sawRecord(ctx, r, e.Kv) {
			s.clones.leave(string(e.Kv.Key))
		}
	}
}

// recordOr returns this node's record. Before there is one, what the watch shows is kept for it: keep does that.
func (s *Store) recordOr(keep func(early map[string]*mvccpb.KeyValue)) *nodeRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil && s.early != nil {
		keep(s.early)
	}
	return s.node
}

// sawEarly takes over what the watch showed before there was a record. It knows better than the watch whether r is there.
func (s *Store) sawEarly(ctx context.Context, r *nodeRecord, early map[string]*mvccpb.KeyValue) {
	for key, kv := range early {
		if key != r.key {
			s.sawRecord(ctx, r, kv)
		}
	}
}

// maxLooks is what is read of clones in a second, in bytes: that is 400 keys of real ones. Whoever may write to etcd can write
// many more, and each change of a lease waits behind them.
const maxLooks = 128 << 10

// sawRecord takes over one key, without a value if it is gone. It reports whether a clone of this node wrote it, or may have: of too
// many at once some are not read. They change nothing of what is known of clones, and are answered.
func (s *Store) sawRecord(ctx context.Context, r *nodeRecord, kv *mvccpb.KeyValue) bool {
	if string(kv.Key) == r.key {
		r.saw(kv)
	}
	if !r.mayBeClone(kv) {
		return false
	}
	if s.looks.AllowN(time.Now(), len(kv.Value)) {
		c, ok := r.cloneIn(kv)
		if !ok {
			return false
		}
		s.clones.saw(string(kv.Key), c)
		if s.due(noticeOf(c)) {
			s.log.WarnContext(ctx, "another host runs with a copy of this node's file", "host", c.Host, "public_ip", c.PublicIP, "boot", c.Boot, "fix", fixClone)
		}
	}
	if strings.HasPrefix(string(kv.Key), r.key+"/") {
		r.wasAsked(kv.ModRevision)
	}
	return true
}

// noticeOf is the notice of a clone, which has one line whichever way it was found.
func noticeOf(c control.Clone) pace.Notice {
	return pace.Notice{Key: c.PublicIP.String() + " " + c.Boot, Text: c.Host}
}

// mayBeClone reports whether a key below nodes() is worth a look: not if no clone of this node has written it, or none that lives.
func (r *nodeRecord) mayBeClone(kv *mvccpb.KeyValue) bool {
	tooLong := len(kv.Key) > len(r.store.keys.Nodes())+maxCloneKey || len(kv.Value) > etcdkeys.MaxRecord
	return kv.Lease != 0 && !tooLong && bytes.Contains(kv.Value, []byte(r.node.ID))
}

// cloneIn reads such a key. ok is false if no clone of this node has written it.
func (r *nodeRecord) cloneIn(kv *mvccpb.KeyValue) (c control.Clone, ok bool) {
	var in struct {
		ID    string `json:"id"`
		Name  string `json:"name"`
		Boot  string `json:"boot"`
		NetNS uint64 `json:"netns"`
		From  string `json:"from"` // of a question
	}
	if err := json.Unmarshal(kv.Value, &in); err != nil || in.ID != r.node.ID || r.node.IsHere(in.Boot, in.NetNS) {
		return c, false
	}
	c = control.Clone{Host: printable(in.Name), Boot: printable(in.Boot), Since: time.Now()}
	if c.PublicIP, ok = r.store.keys.ParseNodeKey(kv.Key); !ok {
		from, _ := netip.ParseAddr(in.From) // without an address the host is known by its name
		c.PublicIP = from.WithZone("")
	}
	return c, true
}

// printable makes a text from etcd safe to print.
func printable(text string) string { return control.Printable(text, 64) }

const (
	maxClones    = 8  // that are remembered
	maxCloneKeys = 16 // of each: its record, and a question of each start within a NodeTTL
	// maxCloneKey bounds such a key below nodes(), in bytes: an address, and the etcd lease of a question.
	maxCloneKey = 64
)

// cloneList has the clones that were seen, the first ones first.
type cloneList struct {
	mu  sync.Mutex
	all []seenClone
}

type seenClone struct {
	control.Clone
	keys map[string]struct{} // that it has in etcd
}

// saw notes a clone that lives.
func (l *cloneList) saw(key string, c control.Clone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.all {
		if known := &l.all[i]; known.Host == c.Host && known.PublicIP == c.PublicIP && known.Boot == c.Boot {
			if known.Gone = (time.Time{}); len(known.keys) < maxCloneKeys {
				known.keys[key] = struct{}{}
			}
			return
		}
	}
	if len(l.all) == maxClones {
		l.all = slices.Delete(l.all, 0, 1)
	}
	l.all = append(l.all, seenClone{c, map[string]struct{}{key: {}}})
}

// leave notes that a key is gone. A clone is gone with its last one.
func (l *cloneList) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.all {
		c := &l.all[i]
		if delete(c.keys, key); len(c.keys) == 0 && c.Gone.IsZero() {
			c.Gone = time.Now()
		}
	}
}

// keys returns those of all clones.
func (l *cloneList) keys() map[string]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]struct{}{}
	for _, c := range l.all {
		maps.Copy(all, c.keys)
	}
	return all
}

// list returns them as they are now.
func (l *cloneList) list() (clones []control.Clone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		clones = append(clones, c.Clone)
	}
	return clones
}
