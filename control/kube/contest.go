package kube

import (
	"cmp"
	"slices"
	"strings"
)

// contest is what happens under one key: mostly one Node publishes a lease. Of several the oldest
// one wins whose lease can be read. Kubernetes itself gives no podCIDR to two Nodes.
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
	i := slices.IndexFunc(k.all, func(c *nodeLease) bool { return c.err == nil })
	if len(k.all) == 0 {
		k.winner = nil
		return
	}
	k.winner = k.all[max(i, 0)]
}

// isLoser reports whether c gives way to an older lease.
func (k *contest) isLoser(c *nodeLease) bool { return c != k.winner && c.err == nil }

// olderFirst orders the Nodes of one key.
func olderFirst(a, b *nodeLease) int {
	return cmp.Or(cmp.Compare(a.lease.CreateRevision, b.lease.CreateRevision), strings.Compare(a.node, b.node))
}
