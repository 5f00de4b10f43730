package guard

import (
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// wanted returns the keys that somebody wants.
func (m *members) wanted() keys {
	all := keys{}
	for name, s := range m.sets {
		all[name] = map[string]bool{}
		for key, e := range s.byKey {
			if e.wanted > 0 {
				all[name][key] = true
			}
		}
	}
	return all
}

// TestMembers: the keys are those that an obvious count gives, whatever comes and goes in whatever order.
func TestMembers(t *testing.T) {
	c := testConfig(t)
	c.Direct = true
	m := newMembers(&c, kind{})
	m.adopt(keys{"pair444_24": {"left": true}})
	lists := [][]dataplane.Peer{manyPeers(3).Peers, manyPeers(5).Peers, nil, manyPeers(2).Peers, slices.Clone(manyPeers(6).Peers)}
	slices.Reverse(lists[4])
	for i, list := range lists {
		k := kind{mixed4: i == 1}
		m.admit(list, k)
		if i == 1 {
			continue // no Prune
		}
		m.forget()
		want := keys{}
		for j := range list {
			c.eachKey(&list[j], k, func(set, key string) {
				if want[set] == nil {
					want[set] = map[string]bool{}
				}
				want[set][key] = true
			})
		}
		if !m.wanted().equal(want) {
			t.Errorf("list %d: got %v, want %v", i, m.wanted(), want)
		}
		m.written(m.names())
		if !m.have().equal(want) {
			t.Errorf("list %d: written %v, want %v", i, m.have(), want)
		}
	}
}
