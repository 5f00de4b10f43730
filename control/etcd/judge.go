package etcd

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
)

// entryState is what an entry under the key of our lease is to us.
type entryState int

const (
	stateForeign  entryState = iota // another node's
	stateOwn                        // hangs on our etcd lease and says what we wrote
	stateReserved                   // a reservation for our public IP
	stateRelated                    // says what we wrote, under an etcd lease that is ours but not known: see judge
	stateOutdated                   // says what we wrote last, and we want to say something else
	stateSpoilt                     // overwritten by what gives nobody a right
)

// judge decides whose an entry is. claimed says that this node's record is its
// own, so that no other live overlayd publishes this address: an entry that says what
// we wrote is then ours though its etcd lease is another, as it is when etcd was
// restored from a backup, or when the reply to an earlier Renew was lost. What cannot be
// read belongs to nobody, unless it is a new entry with an etcd lease of its own.
func (s *Store) judge(kv *mvccpb.KeyValue, l control.Lease, claimed bool) (entryState, control.Lease) {
	entry, err := s.keys.Parse(kv)
	reserved, ours := kv.Lease == 0, kv.Lease == l.Handle
	switch {
	case err != nil && (ours || kv.CreateRevision == l.CreateRevision && !s.hasGoneBack()): // revisions come again once it has
		return stateSpoilt, entry
	case err != nil && reserved && kv.Version == 1: // by hand: a daemon's entry is first written with an etcd lease
		return stateSpoilt, entry
	case err != nil:
		return stateForeign, entry
	case reserved && entry.SamePublicIP(l):
		return stateReserved, entry
	case reserved:
		return stateForeign, entry
	case ours && etcdkeys.SameValue(entry, l):
		return stateOwn, entry
	case ours && kv.ModRevision == l.ModRevision:
		return stateOutdated, entry
	case ours:
		return stateSpoilt, entry
	case claimed && etcdkeys.SameValue(entry, l):
		return stateRelated, entry
	}
	return stateForeign, entry
}

// lostTo is control.ErrLost, and names who has an entry that stands in the way of l.
func lostTo(l, entry control.Lease) error {
	ip := entry.Identity()
	switch {
	case !ip.IsValid():
		return fmt.Errorf("%w: it is held by an entry that cannot be read", control.ErrLost)
	case entry.Key() == l.Key():
		return fmt.Errorf("%w: it is held by %s", control.ErrLost, ip)
	}
	return fmt.Errorf("%w: %s of %s overlaps it", control.ErrLost, entry.CIDRs(), ip)
}
