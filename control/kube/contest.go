package kube

import (
	"cmp"
	"strings"
)

// contest is what happens under one key: mostly one Node publishes a lease. Of several that can be read the winner has the key. It
// is the oldest one, or the own Node, whose key nobody else may have. The others have keys with their names: the RIB decides, because
// the oldest may be one that nobody can use. Kubernetes itself gives no podCIDR to two Nodes.
type contest struct {
	all    []*nodeLease // oldest first
	winner *nodeLease   // the oldest of all, if none can be read; nil without any
}

// contest returns the contest of a key, and makes it if it is new.
func (t *nodeTable) contest(key string) *contest {
	k := t.keys[key]
	if k == nil {
		k = &contest{}
		t.keys[key] = k
	}
	return k
}

// settle finds the winner again.
func (k *contest) settle() {
	k.winner = nil
	for _, c := range k.all {
		if w := k.winner; w == nil || c.err == nil && (w.err != nil || c.own != nil) {
			k.winner = c
		}
	}
}

// isLoser reports whether c has a key with its name.
func (k *contest) isLoser(c *nodeLease) bool { return c != k.winner && c.err == nil }

// olderFirst orders the Nodes of one key.
func olderFirst(a, b *nodeLease) int {
	return cmp.Or(cmp.Compare(a.lease.CreateRevision, b.lease.CreateRevision), strings.Compare(a.node, b.node))
}
