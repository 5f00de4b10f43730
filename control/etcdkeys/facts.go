package etcdkeys

import (
	"net/netip"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

// Facts puts what nodes say of themselves, in their records, into their leases. A record that
// goes, because its daemon ended, leaves its facts for as long as the lease stays as
// it is: the kernel of that node may forward on.
type Facts struct {
	FactsConfig
	records map[netip.Addr]*nodeFacts // by public IP; without a lease at most maxRecords
	leases  map[string]*control.Lease // by key, as last sent: shared with the receiver, and so nobody changes one
	owners  map[netip.Addr]int        // how many leases a node has

	sieve   *control.Sieve // of leases
	omitted int            // leases of the store that have no place among them, about
	told    int            // omitted as last sent
	room    bool           // since the Reset a lease went while there were omitted ones
}

// FactsConfig has what Facts calls: it is required.
type FactsConfig struct {
	Bad func(key string, err error) // for a record that cannot be read
}

// maxRecords bounds the records of nodes without a lease. Anybody who may write to etcd can make millions of them.
const maxRecords = 1 << 16

type nodeFacts struct {
	control.NodeFacts
	gone bool
}

// Reset begins again, with the leases that sieve has chosen, which has left out others: what is not among the records that are added
// from here on is gone.
func (t *Facts) Reset(leases []control.Lease, sieve *control.Sieve, omitted int) {
	t.sieve, t.omitted, t.told, t.room = sieve, omitted, omitted, false
	for _, r := range t.records {
		r.gone = true
	}
	t.owners = map[netip.Addr]int{}
	for _, l := range leases {
		t.owners[l.Identity()]++
	}
}

// Add takes over records that there are now.
func (t *Facts) Add(keys Keys, kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		t.put(keys, kv)
	}
}

// put takes over a record. It returns the address that it is of; ok is false if it is not one.
func (t *Facts) put(keys Keys, kv *mvccpb.KeyValue) (ip netip.Addr, ok bool) {
	if ip, ok = keys.ParseNodeKey(kv.Key); !ok {
		return ip, false
	}
	facts, err := control.ParseNodeFacts(kv.Value)
	if err != nil {
		t.Bad(string(kv.Key), err)
		return ip, false
	}
	if len(t.records) >= maxRecords {
		t.makeRoom()
	}
	t.records[ip] = &nodeFacts{NodeFacts: facts}
	return ip, true
}

// Knows reports whether a key had a lease when the last update was sent.
func (t *Facts) Knows(key string) bool { return t.leases[key] != nil }

// makeRoom drops one record of a node without a lease. A node writes its record before its lease: the map's order is random, so that hardly such a record is hit.
// If the first records that the map shows all have leases, none is dropped: leases are bounded by the subnets of the network.
func (t *Facts) makeRoom() {
	tries := 64
	for ip := range t.records {
		if t.owners[ip] == 0 {
			delete(t.records, ip)
			return
		}
		if tries--; tries == 0 {
			return
		}
	}
}

// set notes the lease of a key. If l is nil, the key has no lease any more.
func (t *Facts) set(key string, l *control.Lease) {
	if old := t.leases[key]; old != nil {
		if ip := old.Identity(); t.owners[ip] > 1 {
			t.owners[ip]--
		} else {
			delete(t.owners, ip)
		}
		delete(t.leases, key)
		t.sieve.Remove(old)
	}
	if l != nil {
		t.leases[key] = l
		t.sieve.Add(l)
		t.owners[l.Identity()]++
	}
}

// Complete puts the facts into the leases of u, which is what the store says now, and adds those leases
// whose node's record is among the changed ones. It takes the leases out of u that have no place.
func (t *Facts) Complete(u *control.Update, changed map[netip.Addr]struct{}) {
	before := t.leases
	if u.Reset {
		t.leases, t.owners = make(map[string]*control.Lease, len(u.Leases)), make(map[netip.Addr]int, len(u.Leases))
	}
	placed := u.Leases[:0]
	for i := range u.Leases {
		key := u.Leases[i].Key()
		if !u.Reset && before[key] == nil && !t.sieve.HasRoom(&u.Leases[i]) {
			t.omit(&u.Leases[i])
			continue
		}
		placed = append(placed, u.Leases[i])
		l := &placed[len(placed)-1]
		l.Facts = t.of(*l, before[key])
		t.set(key, l)
	}
	clear(u.Leases[len(placed):])
	u.Leases = placed
	for _, b := range u.Bad {
		t.set(b.Key, nil) // no change of the record brings the lease back
	}
	for _, key := range u.Deleted {
		if old, had := before[key]; had {
			t.forget(old)
			t.set(key, nil)
			t.room = t.room || t.omitted > 0
		} else if t.omitted > 0 {
			t.omitted--
		}
	}
	if u.Reset {
		t.sweep()
	}
	if len(changed) > 0 {
		t.addChanged(u, changed)
	}
	u.Omitted = t.omitted
}

// omit counts a lease that has no place, once while it is written again.
func (t *Facts) omit(l *control.Lease) {
	if l.CreateRevision == l.ModRevision {
		t.omitted++
	}
}

// Omitted returns how many leases of the store have no place, about. room tells that one of them may have one now: that takes another list.
func (t *Facts) Omitted() (n int, room bool) { return t.omitted, t.room }

// of returns the facts of a lease, which was old or not there. Those of a record that is gone count only while the lease stays as it was.
func (t *Facts) of(l control.Lease, old *control.Lease) control.NodeFacts {
	ip := l.Identity()
	r := t.records[ip]
	switch {
	case r == nil:
		return control.NodeFacts{}
	case r.gone && !(old != nil && SameValue(*old, l)):
		delete(t.records, ip)
		return control.NodeFacts{}
	}
	return r.NodeFacts
}

// gone notes that a record was deleted. Its facts stay if the node has a lease.
func (t *Facts) gone(ip netip.Addr) {
	if r := t.records[ip]; r != nil && t.owners[ip] > 0 {
		r.gone = true
	} else {
		delete(t.records, ip)
	}
}

// forget drops the facts of a node whose lease is gone, if its record is, too.
func (t *Facts) forget(l *control.Lease) {
	if r := t.records[l.Identity()]; r != nil && r.gone {
		delete(t.records, l.Identity())
	}
}

// sweep drops the facts of records that are gone and have no lease.
func (t *Facts) sweep() {
	for ip, r := range t.records {
		if r.gone && t.owners[ip] == 0 {
			delete(t.records, ip)
		}
	}
}

// addChanged adds to u the leases of the changed records that it does not have yet.
func (t *Facts) addChanged(u *control.Update, changed map[netip.Addr]struct{}) {
	for key, l := range t.leases {
		ip := l.Identity()
		if _, ok := changed[ip]; !ok || t.records[ip] == nil || t.records[ip].NodeFacts == l.Facts {
			continue
		}
		known := *l
		known.Facts = t.records[ip].NodeFacts
		t.leases[key] = &known
		u.Leases = append(u.Leases, known)
	}
}

// Apply turns the events of one watch response into an Update, if they are worth one.
func (t *Facts) Apply(keys Keys, events []*mvccpb.Event) (u control.Update, ok bool) {
	changed := map[netip.Addr]struct{}{}
	leases := events[:0:0]
	for _, e := range events {
		if !strings.HasPrefix(string(e.Kv.Key), keys.Nodes()) {
			leases = append(leases, e)
			continue
		}
		if e.Type != mvccpb.Event_DELETE {
			if ip, ok := t.put(keys, e.Kv); ok && t.owners[ip] > 0 {
				changed[ip] = struct{}{}
			}
		} else if ip, ok := keys.ParseNodeKey(e.Kv.Key); ok {
			t.gone(ip)
		}
	}
	u = keys.Update(leases)
	t.Complete(&u, changed)
	ok = len(u.Leases)+len(u.Deleted)+len(u.Bad) > 0 || u.Omitted > 2*t.told // few updates say nothing but that there are more of them
	if ok {
		t.told = u.Omitted
	}
	return u, ok
}

// NewFacts returns an empty table.
func NewFacts(c FactsConfig) *Facts {
	return &Facts{FactsConfig: c, records: map[netip.Addr]*nodeFacts{}, leases: map[string]*control.Lease{}, owners: map[netip.Addr]int{},
		sieve: control.NewSieve(control.Network{}, nil)}
}
