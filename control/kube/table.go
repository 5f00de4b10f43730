package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/overlayd/overlayd/control"
)

// table is where the Reflector puts Nodes: it keeps each Node's lease and nothing else of
// it, and knows which leases have changed since they were last taken.
type table struct {
	reader reader
	wake   chan struct{} // has room for one: there is something to take

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
	key   string // of the lease; badKey(node) if there is none
	lease control.Lease
	err   error // why it is no lease
}

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

// Add implements cache.ReflectorStore.
func (t *table) Add(obj any) error { return t.Update(obj) }

// Update implements cache.ReflectorStore.
func (t *table) Update(obj any) error {
	n, err := asNode(obj)
	if err != nil {
		return err
	}
	defer t.poke()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(n, t.nodes[n.Name])
	return nil
}

// Delete implements cache.ReflectorStore.
func (t *table) Delete(obj any) error {
	n, err := asNode(obj)
	if err != nil {
		return err
	}
	defer t.poke()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(t.nodes[n.Name])
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table) Replace(objs []any, _ string) error {
	defer t.poke()
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.nodes
	t.nodes, t.keys, t.dirty = make(map[string]*claim, len(objs)), make(map[string][]*claim, len(objs)), map[string]struct{}{}
	for _, obj := range objs {
		n, err := asNode(obj)
		if err != nil {
			return err
		}
		c := t.claimOf(n, old[n.Name])
		if c != nil {
			t.insert(c)
		}
	}
	t.whole, t.reset = true, true
	clear(t.dirty)
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *table) Resync() error { return nil }

func asNode(obj any) (*corev1.Node, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("watch nodes: got a %T", obj)
	}
	return n, nil
}

func (t *table) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// claimOf returns what n says, nil if nothing. What cannot be read is bad under the key of
// n's subnets, or where these cannot be read either under the key that it had: what was
// known there stays.
func (t *table) claimOf(n *corev1.Node, old *claim) *claim {
	l, ok, err := t.reader.lease(n)
	if !ok {
		return nil
	}
	c := &claim{node: strings.Clone(n.Name), lease: l, err: err}
	switch {
	case l.Subnet.IsValid() || l.IPv6Subnet.IsValid():
		c.key = l.Key()
	case old != nil:
		c.key = old.key
	default:
		c.key = badKey(c.node)
	}
	return c
}

// set takes over what n says now; old is what it said before.
func (t *table) set(n *corev1.Node, old *claim) {
	c := t.claimOf(n, old)
	if c != nil && old != nil && c.same(old) {
		return // a heartbeat of its kubelet
	}
	t.remove(old)
	if c != nil {
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
