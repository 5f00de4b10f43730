package controltest

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// Memory is a store in memory: what an etcd server is to control/etcd. It has
// revisions, rights that expire by time.Now (so that a test in a testing/synctest
// bubble sets the clock), and watches that can be given a gap. It is a Harness,
// and passes Conform. Its methods may be called from several goroutines.
type Memory struct {
	ttl time.Duration

	mu       sync.Mutex
	config   []byte // nil: none
	down     error  // what every call answers, or nil
	full     error  // what every call answers that would write, or nil
	revision int64
	entries  map[string]*entry
	live     map[netip.Addr]control.Node // nodes with a sign of life, by public IP, also of clients that are gone
	watches  map[*watcher]struct{}
}

// entry is one key's value with etcd's bookkeeping.
type entry struct {
	value               []byte
	by                  string // the ID of the node that wrote it; "" if some other program did
	create, mod, handle int64
	expiry              *time.Timer // nil: never
}

// NewMemory returns an empty store whose leases last ttl.
func NewMemory(ttl time.Duration) *Memory {
	return &Memory{ttl: ttl, entries: map[string]*entry{}, live: map[netip.Addr]control.Node{}, watches: map[*watcher]struct{}{}}
}

// Open implements Harness.
func (m *Memory) Open(tb testing.TB) control.Store {
	c := &client{m: m}
	tb.Cleanup(c.close)
	return c
}

// SetConfig implements Harness.
func (m *Memory) SetConfig(_ testing.TB, text []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.config = slices.Clone(text)
}

// SetDown makes every call answer err, and watches stand still, until SetDown(nil),
// which is a gap for every watch.
func (m *Memory) SetDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
	m.gap()
}

// SetFull makes every call of a Store that would write answer err, until SetFull(nil): a store whose space
// is used up.
func (m *Memory) SetFull(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = err
}

// PutRaw implements Harness.
func (m *Memory) PutRaw(_ testing.TB, key string, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, value, 0)
}

// PutLeased implements Reserver.
func (m *Memory) PutLeased(_ testing.TB, key string, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, value, m.revision+1)
}

// Expires implements Reserver.
func (m *Memory) Expires(_ testing.TB, key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	return ok && e.expiry != nil
}

// DeleteRaw implements Harness.
func (m *Memory) DeleteRaw(_ testing.TB, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delete(key)
}

// GetRaw implements Harness.
func (m *Memory) GetRaw(_ testing.TB, key string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok {
		return nil, false
	}
	return slices.Clone(e.value), true
}

// Keys implements Harness.
func (m *Memory) Keys(testing.TB) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sorted()
}

// Expire implements Expirer.
func (m *Memory) Expire(tb testing.TB, key string) { m.DeleteRaw(tb, key) }

// Disconnect implements Disconnecter.
func (m *Memory) Disconnect(testing.TB) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gap()
}

func (m *Memory) sorted() []string {
	keys := make([]string, 0, len(m.entries))
	for k := range m.entries {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// put writes an entry that expires unless handle is 0, and tells the watches.
func (m *Memory) put(key string, value []byte, handle int64) *entry {
	m.revision++
	e := &entry{value: slices.Clone(value), create: m.revision, mod: m.revision, handle: handle}
	if old, ok := m.entries[key]; ok {
		e.create = old.create
		old.stopExpiry()
	}
	m.entries[strings.Clone(key)] = e
	if handle != 0 {
		e.expiry = time.AfterFunc(m.ttl, func() { m.expire(key, e) })
	}
	m.tell(key)
	return e
}

func (m *Memory) delete(key string) {
	e, ok := m.entries[key]
	if !ok {
		return
	}
	e.stopExpiry()
	m.revision++
	delete(m.entries, key)
	m.tell(key)
}

// expire ends an entry, unless it was written again as its timer fired.
func (m *Memory) expire(key string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key] == e {
		m.delete(key)
	}
}

func (e *entry) stopExpiry() {
	if e.expiry != nil {
		e.expiry.Stop()
	}
}

// lease reads an entry as control/etcd reads a key.
func (e *entry) lease(key string) (control.Lease, error) {
	l, err := control.ParseLease(key, e.value)
	if err != nil {
		return control.Lease{}, err
	}
	l.CreateRevision, l.ModRevision, l.Handle, l.Reserved = e.create, e.mod, e.handle, e.handle == 0
	return l, nil
}

// addTo adds an entry to u, as what it is.
func (m *Memory) addTo(u *control.Update, key string) {
	e, ok := m.entries[key]
	if !ok {
		u.Deleted = append(u.Deleted, key)
		return
	}
	l, err := e.lease(key)
	if err != nil {
		u.Bad = append(u.Bad, control.BadLease{Key: key, Err: err})
		return
	}
	u.Leases = append(u.Leases, l)
}

// snapshot returns a Reset with everything in it.
func (m *Memory) snapshot() control.Update {
	u := control.Update{Reset: true}
	for _, k := range m.sorted() {
		m.addTo(&u, k)
	}
	return u
}

// Compact implements Compacter: a Memory has no old revisions, so that a watch
// with a gap begins again in any case.
func (m *Memory) Compact(testing.TB) {}
