package etcdnets

import (
	"cmp"
	"maps"
	"slices"
)

const (
	maxNetworks = 4096            // that are served
	maxUsable   = 2 * maxNetworks // that are remembered, to take the place of one that goes
	maxBad      = 16              // of those without a usable config, which are served so that their status says so
	maxKnownBad = 1024            // of those that are remembered, for the same
)

// networks are the networks that there are, by name, with the revisions at which their configs were created. Whoever may write to etcd can
// make millions of them: the oldest ones are remembered.
type networks struct {
	usable  map[string]int64 // that have or had a config that can be read
	bad     map[string]int64
	omitted int // those that are not remembered, about

	youngest int64 // the newest revision of those that the last omit kept; 0: omit was not called
}

func newNetworks() *networks { return &networks{usable: map[string]int64{}, bad: map[string]int64{}} }

// put adds a network with a usable config. It reports whether that may change names.
func (n *networks) put(name string, created int64) (changed bool) {
	_, known := n.usable[name]
	delete(n.bad, name)
	n.usable[name] = created
	changed = !known && len(n.usable) <= maxNetworks+1 // one more, to say so
	if len(n.usable) > maxUsable {
		n.omit()
	}
	return changed
}

// omit drops those that are not served.
func (n *networks) omit() {
	n.omitted += len(n.usable) - maxNetworks
	served := make(map[string]int64, maxUsable)
	for _, name := range oldest(n.usable, maxNetworks) {
		served[name] = n.usable[name]
		n.youngest = n.usable[name]
	}
	n.usable = served
}

// omits reports whether a network has no place. A network has none if it is younger than all that are served and others wait for a place. omits counts
// such a network, but not a second time when somebody writes its config again. It does not need the config: to read those of millions takes too long.
func (n *networks) omits(name string, created int64, again bool) bool {
	if n.omitted == 0 || created <= n.youngest || n.has(name) {
		return false
	}
	if !again {
		n.omitted++
	}
	return true
}

// hasRoom reports whether one that was omitted may be served now: that takes another list.
func (n *networks) hasRoom() bool { return n.omitted > 0 && len(n.usable) < maxNetworks }

// putBad adds a network without a usable config. It reports whether that may change names.
func (n *networks) putBad(name string, created int64) (changed bool) {
	_, known := n.bad[name]
	_, was := n.usable[name] // one that was deleted and created again within one read
	delete(n.usable, name)
	if known || len(n.bad) < maxKnownBad {
		n.bad[name] = created
	}
	return was || !known && len(n.bad) <= maxBad
}

func (n *networks) has(name string) bool {
	_, usable := n.usable[name]
	_, bad := n.bad[name]
	return usable || bad
}

// created returns the revision at which the config of a network was created.
func (n *networks) created(name string) int64 { return cmp.Or(n.usable[name], n.bad[name]) }

func (n *networks) remove(name string) {
	if !n.has(name) && n.omitted > 0 {
		n.omitted--
	}
	delete(n.usable, name)
	delete(n.bad, name)
}

// names returns the names of the networks to serve, sorted, and how many with a usable config are left out.
func (n *networks) names() (names []string, left int) {
	names = append(oldest(n.usable, maxNetworks), oldest(n.bad, maxBad)...)
	slices.Sort(names)
	return names, max(len(n.usable)-maxNetworks, 0) + n.omitted
}

// oldest returns up to limit names.
func oldest(created map[string]int64, limit int) []string {
	names := slices.SortedFunc(maps.Keys(created), func(a, b string) int {
		return cmp.Or(cmp.Compare(created[a], created[b]), cmp.Compare(a, b))
	})
	return names[:min(len(names), limit)]
}
