package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// nodeTable is where the Reflector puts Nodes: it keeps each Node's lease and nothing else of
// it, and knows which leases have changed since they were last taken.
type nodeTable struct {
	reader reader
	seen   func(*corev1.Node) // called for each event; may be nil
	wake   chan struct{}      // has room for one: there is something to take

	mu    sync.Mutex
	nodes map[string]*nodeLease // by Node name
	keys  map[string]*contest   // by the key of a lease
	dirty map[string]struct{}   // keys that have changed
	whole bool                  // there was a list
	reset bool                  // and it was not taken yet
}

// nodeLease is the lease that one Node publishes.
type nodeLease struct {
	node  string
	ours  bool          // it has a lease, readable or not
	key   string        // of the lease; of what cannot be read see place
	lease control.Lease // without err
	err   error         // why it cannot be read
	own   *corev1.Node  // the own Node, trimmed, because it may be judged again; nil: this is another Node
}

// GetObjectMeta lets the Reflector gather leases in place of Nodes.
func (c *nodeLease) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: c.node} }

// badKey is the key in an Update of a Node that cannot be given the key of a lease. No
// lease has such a key, and a Node's name has no slash.
func badKey(node string) string { return "node/" + node }

// claim is the lease of a Node that is not the winner of its key.
func (c *nodeLease) claim() control.Lease {
	l := c.lease
	l.Claimant = c.node
	return l
}

var (
	_ cache.ReflectorStore    = (*nodeTable)(nil)
	_ cache.TransformingStore = (*nodeTable)(nil)
)

func newNodeTable(r reader) *nodeTable {
	return &nodeTable{reader: r, wake: make(chan struct{}, 1),
		nodes: map[string]*nodeLease{}, keys: map[string]*contest{}, dirty: map[string]struct{}{}}
}

// Transformer implements cache.TransformingStore: what the Reflector gathers of a list
// before it calls Replace is leases, a fiftieth of a real Node.
func (t *nodeTable) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return t.leaseOf(obj) }
}

// leaseOf returns the lease that a Node publishes.
func (t *nodeTable) leaseOf(obj any) (*nodeLease, error) {
	if c, ok := obj.(*nodeLease); ok {
		if c.own != nil {
			c = t.read(c.own) // what it has to publish may have changed
		}
		return c, nil
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("watch nodes: got a %T", obj)
	}
	if t.seen != nil {
		t.seen(n)
	}
	return t.read(n), nil
}

// read makes the lease of a Node.
func (t *nodeTable) read(n *corev1.Node) *nodeLease {
	c := &nodeLease{node: n.Name}
	if c.lease, c.ours, c.err = t.reader.lease(n); c.lease.Subnet.IsValid() || c.lease.IPv6Subnet.IsValid() {
		c.key = c.lease.Key()
	}
	c.lease.Facts = c.lease.Facts.WithName(n.Name) // and not what the Node says
	if t.reader.isOwn != nil && t.reader.isOwn(n.Name) {
		c.own = t.reader.trim(n)
	}
	return c
}

// judgeOwn judges the own Node again, after what it has to publish has changed.
func (t *nodeTable) judgeOwn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.nodes {
		if c.own != nil {
			t.set(t.read(c.own))
			return
		}
	}
}

// own returns the own Node, trimmed; nil: it has no lease.
func (t *nodeTable) own(name string) *corev1.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.nodes[name]; c != nil {
		return c.own
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (t *nodeTable) Add(obj any) error { return t.Update(obj) }

// Update implements cache.ReflectorStore.
func (t *nodeTable) Update(obj any) error {
	t.mu.Lock()
	defer t.mu.Unlock() // from before the Node is judged, or judgeOwn could miss it
	c, err := t.leaseOf(obj)
	if err != nil {
		return err
	}
	t.set(c)
	return nil
}

// Delete implements cache.ReflectorStore.
func (t *nodeTable) Delete(obj any) error {
	c, err := t.leaseOf(obj)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(t.nodes[c.node])
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *nodeTable) Replace(objs []any, _ string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.nodes
	t.nodes, t.keys = make(map[string]*nodeLease, len(objs)), make(map[string]*contest, len(objs))
	for _, obj := range objs {
		c, err := t.leaseOf(obj)
		if err != nil {
			return err
		}
		if c.ours {
			c.place(old[c.node])
			t.nodes[c.node] = c
			k := t.contest(c.key)
			k.all = append(k.all, c)
		}
	}
	for _, k := range t.keys {
		slices.SortFunc(k.all, olderFirst)
		k.settle()
	}
	t.whole, t.reset = true, true
	pace.Wake(t.wake)
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *nodeTable) Resync() error { return nil }

// place gives a lease that cannot be read a key: that of the Node's subnets, or else, if these cannot be
// read either, the one that old had. What was known under it stays.
func (c *nodeLease) place(old *nodeLease) {
	switch {
	case c.key != "":
	case old != nil:
		c.key = old.key
	default:
		c.key = badKey(c.node)
	}
}

// set takes over what a Node says now.
func (t *nodeTable) set(c *nodeLease) {
	old := t.nodes[c.node]
	c.place(old)
	if c.ours && old != nil && c.same(old) {
		old.own = c.own
		return // a heartbeat of its kubelet
	}
	t.remove(old)
	if c.ours {
		t.insert(c)
	}
}

// same reports whether two leases of one Node differ in their ModRevision at most.
func (c *nodeLease) same(o *nodeLease) bool {
	a, b := c.lease, o.lease
	a.ModRevision = b.ModRevision
	if c.err == nil || o.err == nil {
		return c.err == o.err && c.key == o.key && a == b
	}
	return c.err.Error() == o.err.Error() && c.key == o.key && a == b
}

func (t *nodeTable) insert(c *nodeLease) {
	t.nodes[c.node] = c
	k := t.contest(c.key)
	before := k.winner
	at, _ := slices.BinarySearchFunc(k.all, c, olderFirst)
	k.all = slices.Insert(k.all, at, c)
	k.settle()
	t.mark(c, k, before)
}

func (t *nodeTable) remove(c *nodeLease) {
	if c == nil {
		return
	}
	delete(t.nodes, c.node)
	k := t.contest(c.key)
	before := k.winner
	if at, ok := slices.BinarySearchFunc(k.all, c, olderFirst); ok {
		k.all = slices.Delete(k.all, at, at+1)
	}
	k.settle()
	if t.mark(c, k, before); len(k.all) == 0 {
		delete(t.keys, c.key)
	}
}

// mark notes that c came or went under the key of k, whose winner was before. That concerns all
// Nodes of the key if it has another winner now.
func (t *nodeTable) mark(c *nodeLease, k *contest, before *nodeLease) {
	pace.Wake(t.wake)
	t.dirty[c.key] = struct{}{}
	if before == nil || before == c && len(k.all) == 0 || k.winner == c && len(k.all) == 1 {
		return // c was or is alone
	}
	for _, o := range [...]*nodeLease{c, before, k.winner} {
		if o != nil {
			t.dirty[c.key+"@"+o.node] = struct{}{}
		}
	}
}

// take returns what has changed since the last take, each key once and as it is now;
// everything, if there was a list since.
func (t *nodeTable) take() (u control.Update, ok bool) {
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

func (t *nodeTable) snapshot() control.Update {
	u := control.Update{Reset: true, Leases: make([]control.Lease, 0, len(t.keys))}
	for _, key := range slices.Sorted(maps.Keys(t.keys)) {
		t.addTo(&u, key)
		for _, c := range t.keys[key].all {
			if t.keys[key].isLoser(c) {
				u.Leases = append(u.Leases, c.claim())
			}
		}
	}
	return u
}

// addTo adds the present state of a key to u.
func (t *nodeTable) addTo(u *control.Update, key string) {
	if k := t.keys[key]; k != nil {
		if k.winner.err != nil {
			u.Bad = append(u.Bad, control.BadLease{Key: key, Name: k.winner.lease.Facts.Name, Err: k.winner.err})
		} else {
			u.Leases = append(u.Leases, k.winner.lease)
		}
		return
	}
	subnets, name, _ := strings.Cut(key, "@")
	if c := t.nodes[name]; c != nil && c.key == subnets && t.keys[subnets].isLoser(c) {
		u.Leases = append(u.Leases, c.claim())
		return
	}
	u.Deleted = append(u.Deleted, key)
}
