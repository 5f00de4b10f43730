package guard

import (
	"maps"
	"slices"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// keys are those of each set, by its name.
type keys map[string]map[string]bool

// equal reports whether both have the same keys. An empty set equals a missing one: the text of a table has the names of the sets.
func (k keys) equal(o keys) bool {
	within := func(a, b keys) bool {
		for set, list := range a {
			if len(list) != len(b[set]) {
				return false
			}
			for key := range list {
				if !b[set][key] {
					return false
				}
			}
		}
		return true
	}
	return within(k, o) && within(o, k)
}

// members are the wanted keys of the sets, how many peers want each key, and the keys that the kernel has. With these counts a change of one
// peer costs the same with many peers as with one.
type members struct {
	cfg    *Config
	kind   kind
	peers  []dataplane.Peer // counted
	counts map[string]map[string]int
	have   keys
	dirty  keys     // that may be other in counts than in have
	leave  []func() // take back what Sync has left, for Prune
}

func newMembers(c *Config, k kind) members {
	return members{cfg: c, kind: k, counts: map[string]map[string]int{}, have: keys{}, dirty: keys{}}
}

// count adds n to the number of those that want a key.
func (m *members) count(set, key string, n int) {
	if m.counts[set] == nil {
		m.counts[set] = map[string]int{}
	}
	if m.counts[set][key] += n; m.counts[set][key] == 0 {
		delete(m.counts[set], key)
	}
	if m.dirty[set] == nil {
		m.dirty[set] = map[string]bool{}
	}
	m.dirty[set][key] = true
}

func (m *members) countPeers(list []dataplane.Peer, k kind, n int) {
	for i := range list {
		m.cfg.eachKey(&list[i], k, func(set, key string) { m.count(set, key, n) })
	}
}

// adopt counts the keys that an earlier run has left as wanted, until the next Prune.
func (m *members) adopt(left keys) {
	m.have = keys{}
	for set, list := range left {
		m.have[set] = maps.Clone(list)
	}
	for set, list := range left {
		for key := range list {
			m.count(set, key, 1)
		}
	}
	m.leave = append(m.leave, func() {
		for set, list := range left {
			for key := range list {
				m.count(set, key, -1)
			}
		}
	})
}

// admit adds the keys of the peers, and keeps those that were there.
func (m *members) admit(peers []dataplane.Peer, k kind) {
	gone, new, was := m.peers, peers, m.kind
	if k.same(was) {
		gone, new = differing(m.peers, peers)
	}
	m.countPeers(new, k, 1)
	m.leave = append(m.leave, func() { m.countPeers(gone, was, -1) })
	m.peers, m.kind = peers, k
}

// forget removes the keys that only earlier peers wanted.
func (m *members) forget() {
	for _, take := range m.leave {
		take()
	}
	m.leave = nil
}

// differing returns both lists without their common beginning and end.
func differing(a, b []dataplane.Peer) (onlyA, onlyB []dataplane.Peer) {
	for len(a) > 0 && len(b) > 0 && samePeer(&a[0], &b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && samePeer(&a[len(a)-1], &b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

func samePeer(a, b *dataplane.Peer) bool {
	return a.Addr == b.Addr && a.Source == b.Source && slices.Equal(a.Subnets, b.Subnets)
}

// names are the wanted sets: those with keys, and the set of the peers' addresses.
func (m *members) names() map[string]bool {
	names := map[string]bool{}
	for _, f := range m.cfg.families() {
		names[hostSet(f)] = true
	}
	for set, list := range m.counts {
		if len(list) > 0 {
			names[set] = true
		}
	}
	return names
}

// all returns the keys that are wanted.
func (m *members) all() keys {
	all := keys{}
	for set := range m.names() {
		all[set] = map[string]bool{}
		for key := range m.counts[set] {
			all[set][key] = true
		}
	}
	return all
}

// grow returns the steps that make missing sets and keys. shrink returns those that remove unwanted ones. A set
// can be removed only after the last rule that names it.
func (m *members) grow(table string, names map[string]bool) (steps []nft.Step) {
	for i, set := range slices.Sorted(maps.Keys(names)) {
		if m.have[set] == nil {
			steps = append(steps, nft.NewSet(nft.Inet, table, setOf(set), uint32(i+1)))
		}
		var missing []string
		for key := range m.dirty[set] {
			if m.counts[set][key] > 0 && !m.have[set][key] {
				missing = append(missing, key)
			}
		}
		slices.Sort(missing)
		steps = append(steps, nft.AddElements(nft.Inet, table, set, missing)...)
	}
	return steps
}

func (m *members) shrink(table string, names map[string]bool) (steps []nft.Step) {
	for _, set := range slices.Sorted(maps.Keys(m.have)) {
		if !names[set] {
			steps = append(steps, nft.DeleteSet(nft.Inet, table, set))
			continue
		}
		var stale []string
		for key := range m.dirty[set] {
			if m.counts[set][key] == 0 && m.have[set][key] {
				stale = append(stale, key)
			}
		}
		slices.Sort(stale)
		steps = append(steps, nft.DeleteElements(nft.Inet, table, set, stale)...)
	}
	return steps
}

// written notes that the kernel has what is wanted.
func (m *members) written(names map[string]bool) {
	for set := range m.have {
		if !names[set] {
			delete(m.have, set)
		}
	}
	for set := range names {
		if m.have[set] == nil {
			m.have[set] = map[string]bool{}
		}
		for key := range m.dirty[set] {
			if m.counts[set][key] > 0 {
				m.have[set][key] = true
			} else {
				delete(m.have[set], key)
			}
		}
	}
	m.dirty = keys{}
}

// lost notes that the kernel has nothing.
func (m *members) lost() {
	m.have, m.dirty = keys{}, m.all()
}
