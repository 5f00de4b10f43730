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

// member is one key of a set.
type member struct {
	key     string
	wanted  int  // by how many peers
	have    bool // the kernel has it
	changed bool // it is in the list of that name
}

// memberSet is one set of members: those that somebody wants or the kernel has.
type memberSet struct {
	byKey   map[string]*member
	wanted  int       // how many somebody wants
	have    bool      // the kernel has the set
	changed []*member // since the kernel was last written
}

// note puts a member on the list of those to look at in the next write.
func (s *memberSet) note(e *member) {
	if !e.changed {
		e.changed = true
		s.changed = append(s.changed, e)
	}
}

// member returns the member with a key, a new one if there is none.
func (s *memberSet) member(key string) *member {
	e := s.byKey[key]
	if e == nil {
		e = &member{key: key}
		s.byKey[key] = e
	}
	return e
}

// keys lists the keys of the changed members for which is holds.
func (s *memberSet) keys(is func(*member) bool) (list []string) {
	for _, e := range s.changed {
		if is(e) {
			list = append(list, e.key)
		}
	}
	return list
}

// members are the keys of the sets: how many peers want each, and whether the kernel has it. With these counts a change of one
// peer costs the same with many peers as with one.
type members struct {
	cfg   *Config
	kind  kind
	peers []dataplane.Peer // counted
	sets  map[string]*memberSet
	leave []func() // take back what Sync has left, for Prune
}

func newMembers(c *Config, k kind) members {
	return members{cfg: c, kind: k, sets: map[string]*memberSet{}}
}

func (m *members) set(name string) *memberSet {
	s := m.sets[name]
	if s == nil {
		s = &memberSet{byKey: map[string]*member{}}
		m.sets[name] = s
	}
	return s
}

// count adds n to the number of those that want a key.
func (m *members) count(set, key string, n int) {
	s := m.set(set)
	e := s.member(key)
	before := e.wanted > 0
	e.wanted += n
	if now := e.wanted > 0; now != before {
		s.note(e)
		if now {
			s.wanted++
		} else {
			s.wanted--
		}
	}
}

func (m *members) countPeers(list []dataplane.Peer, k kind, n int) {
	for i := range list {
		m.cfg.eachKey(&list[i], k, func(set, key string) { m.count(set, key, n) })
	}
}

// adopt counts the keys that an earlier run has left as wanted, until the next Prune.
func (m *members) adopt(left keys) {
	for name, list := range left {
		for key := range list {
			m.count(name, key, 1)
		}
		m.set(name).write()
	}
	m.leave = append(m.leave, func() {
		for name, list := range left {
			for key := range list {
				m.count(name, key, -1)
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
	for name, s := range m.sets {
		if s.wanted > 0 {
			names[name] = true
		}
	}
	return names
}

// have returns the keys that the kernel has.
func (m *members) have() keys {
	all := keys{}
	for name, s := range m.sets {
		if s.have {
			all[name] = map[string]bool{}
			for key, e := range s.byKey {
				if e.have {
					all[name][key] = true
				}
			}
		}
	}
	return all
}

// made counts the sets that the kernel has.
func (m *members) made() (n int) {
	for _, s := range m.sets {
		if s.have {
			n++
		}
	}
	return n
}

// grow returns the steps that make missing sets and keys. shrink returns those that remove unwanted ones. A set
// can be removed only after the last rule that names it.
func (m *members) grow(table string, names map[string]bool) (steps []nft.Step) {
	for i, name := range slices.Sorted(maps.Keys(names)) {
		s := m.set(name)
		if !s.have {
			steps = append(steps, nft.NewSet(nft.Inet, table, setOf(name), uint32(i+1)))
		}
		missing := s.keys(func(e *member) bool { return e.wanted > 0 && !e.have })
		steps = append(steps, nft.AddElements(nft.Inet, table, name, missing)...)
	}
	return steps
}

func (m *members) shrink(table string, names map[string]bool) (steps []nft.Step) {
	for _, name := range slices.Sorted(maps.Keys(m.sets)) {
		s := m.sets[name]
		if !names[name] {
			if s.have {
				steps = append(steps, nft.DeleteSet(nft.Inet, table, name))
			}
			continue
		}
		stale := s.keys(func(e *member) bool { return e.wanted == 0 && e.have })
		steps = append(steps, nft.DeleteElements(nft.Inet, table, name, stale)...)
	}
	return steps
}

// written notes that the kernel has what is wanted.
func (m *members) written(names map[string]bool) {
	for name, s := range m.sets {
		if !names[name] {
			delete(m.sets, name)
			continue
		}
		s.write()
	}
}

// write notes that the kernel has the set, and of its members those that are wanted.
func (s *memberSet) write() {
	for _, e := range s.changed {
		e.changed, e.have = false, e.wanted > 0
		if !e.have {
			delete(s.byKey, e.key)
		}
	}
	s.have, s.changed = true, nil
}

// lost notes that the kernel has nothing.
func (m *members) lost() {
	for _, s := range m.sets {
		s.have, s.changed = false, nil
		for key, e := range s.byKey {
			e.have, e.changed = false, false
			if e.wanted == 0 {
				delete(s.byKey, key)
			} else {
				s.note(e)
			}
		}
	}
}
