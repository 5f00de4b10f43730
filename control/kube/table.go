package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/overlayd/overlayd/control"
)

// table is where the Reflector puts Nodes: it keeps each Node's lease and nothing else of
// it, and knows which leases have changed since they were last taken.
type table struct {
	reader reader
	seen   func(*corev1.Node) // called for each event; may be nil
	wake   chan struct{}      // has room for one: there is something to take

	mu    sync.Mutex
	nodes map[string]*claim   // by Node name
	keys  map[string][]*claim // by the claim's key, oldest first
	dirty map[string]struct{} // keys that have changed
	whole bool                // there was a list
	reset bool                // and it was not taken yet
}

// claim is what one Node says.
type claim struct {
	node  string
	ours  bool          // it has a lease, readable or not
	key   string        // of the lease; of what cannot be read see place
	lease control.Lease // without err
	err   error         // why it is no lease
}

// GetObjectMeta lets the Reflector gather claims in place of Nodes.
func (c *claim) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: c.node} }

// badKey is the key in an Update of a Node that cannot be given the key of a lease. No
// lease has such a key, and a Node's name has no slash.
func badKey(node string) string { return "node/" + node }

var (
	_ cache.ReflectorStore    = (*table)(nil)
	_ cache.TransformingStore = (*table)(nil)
)

func newTable(r reader) *table {
	return &table{reader: r, wake: make(chan struct{}, 1),
		nodes: map[string]*claim{}, keys: map[string][]*claim{}, dirty: map[string]struct{}{}}
}

// Transformer implements cache.TransformingStore: what the Reflector gathers of a list
// before it calls Replace is claims, a fiftieth of a real Node.
func (t *table) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return t.claimOf(obj) }
}

// claimOf returns what a Node says.
func (t *table) claimOf(obj any) (*claim, error) {
	if c, ok := obj.(*claim); ok {
		return c, nil
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("watch nodes: got a %T", obj)
	}
	if t.seen != nil {
		t.seen(n)
	}
	c := &claim{node: n.Name}
	if c.lease, c.ours, c.err = t.reader.lease(n); c.lease.Subnet.IsValid() || c.lease.IPv6Subnet.IsValid() {
		c.key = c.lease.Key()
	}
	return c, nil
}

// Add implements cache.ReflectorStore.
func (t *table) Add(obj any) error { return t.Update(obj) }

// Update implements cache.ReflectorStore.
func (t *table) Update(obj any) error {
	c, err := t.claimOf(obj)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(c)
	return nil
}

// Delete implements cache.ReflectorStore.
func (t *table) Delete(obj any) error {
	c, err := t.claimOf(obj)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(t.nodes[c.node])
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table) Replace(objs []any, _ string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.nodes
	t.nodes, t.keys = make(map[string]*claim, len(objs)), make(map[string][]*claim, len(objs))
	for _, obj := range objs {
		c, err := t.claimOf(obj)
		if err != nil {
			return err
		}
		if c.ours {
			c.place(old[c.node])
			t.insert(c)
		}
	}
	t.whole, t.reset = true, true
	t.poke()
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *table) Resync() error { return nil }

func (t *table) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// place gives what cannot be read a key: that of the Node's subnets, or where these cannot be
// read either the one that it had, old's. What was known under it stays.
func (c *claim) place(old *claim) {
	switch {
	case c.key != "":
	case old != nil:
		c.key = old.key
	default:
		c.key = badKey(c.node)
	}
}

// set takes over what a Node says now.
func (t *table) set(c *claim) {
	old := t.nodes[c.node]
	c.place(old)
	if c.ours && old != nil && c.same(old) {
		return // a heartbeat of its kubelet
	}
	t.remove(old)
	if c.ours {
		t.insert(c)
	}
}

// same reports whether two claims of one Node differ in their ModRevision at most.
func (c *claim) same(o *claim) bool {
	a, b := c.lease, o.lease
	a.ModRevision = b.ModRevision
	if c.err == nil || o.err == nil {
		return c.err == o.err && c.key == o.key && a == b
	}
	return c.err.Error() == o.err.Error() && c.key == o.key && a == b
}

func (t *table) insert(c *claim) {
	t.nodes[c.node] = c
	t.keys[c.key] = append(t.keys[c.key], c)
	slices.SortFunc(t.keys[c.key], func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.lease.CreateRevision, b.lease.CreateRevision), strings.Compare(a.node, b.node))
	})
	t.mark(c)
}

func (t *table) remove(c *claim) {
	if c == nil {
		return
	}
	t.mark(c)
	delete(t.nodes, c.node)
	rest := slices.DeleteFunc(t.keys[c.key], func(o *claim) bool { return o == c })
	if t.keys[c.key] = rest; len(rest) == 0 {
		delete(t.keys, c.key)
	}
}

// mark notes that the state of c's key has changed, and with it that of all Nodes
// that claim it if there are several.
func (t *table) mark(c *claim) {
	t.poke()
	t.dirty[c.key] = struct{}{}
	if all := t.keys[c.key]; len(all) > 1 {
		for _, o := range all {
			t.dirty[badKey(o.node)] = struct{}{}
		}
	}
}

// take returns what has changed since the last take, each key once and as it is now;
// everything, if there was a list since.
func (t *table) take() (u control.Update, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.whole {
		return control.Update{}, false
	}
	if t.reset {
		u = t.snapshot()
	} else {
		for _, key := range slices.Sorted(maps.Keys(t.dirty)) {
			t.addTo(&u, key)
		}
	}
	ok = t.reset || len(t.dirty) > 0
	t.reset = false
	clear(t.dirty)
	return u, ok
}

func (t *table) snapshot() control.Update {
	u := control.Update{Reset: true, Leases: make([]control.Lease, 0, len(t.keys))}
	for _, key := range slices.Sorted(maps.Keys(t.keys)) {
		t.addTo(&u, key)
		for _, c := range t.losers(key) {
			t.addTo(&u, badKey(c.node))
		}
	}
	return u
}

// losers returns the claims of a key that give way to an older one.
func (t *table) losers(key string) []*claim {
	if all := t.keys[key]; len(all) > 1 {
		winner := t.winner(key)
		return slices.DeleteFunc(slices.Clone(all), func(c *claim) bool { return c == winner || c.err != nil })
	}
	return nil
}

// winner returns the oldest lease of a key, or what is wrong with the oldest claim of it.
func (t *table) winner(key string) *claim {
	all := t.keys[key]
	i := slices.IndexFunc(all, func(c *claim) bool { return c.err == nil })
	if len(all) == 0 {
		return nil
	}
	return all[max(i, 0)]
}

// addTo adds the present state of a key to u.
func (t *table) addTo(u *control.Update, key string) {
	if c := t.winner(key); c != nil {
		if c.err != nil {
			u.Bad = append(u.Bad, control.BadLease{Key: key, Err: c.err})
		} else {
			u.Leases = append(u.Leases, c.lease)
		}
		return
	}
	name, isNode := strings.CutPrefix(key, "node/")
	if c := t.nodes[name]; isNode && c != nil && slices.Contains(t.losers(c.key), c) {
		u.Bad = append(u.Bad, control.BadLease{Key: key, Err: fmt.Errorf("node %s: podCIDR of %s belongs to the older node %s",
			quote(name), c.key, quote(t.winner(c.key).node))})
		return
	}
	u.Deleted = append(u.Deleted, key)
}
