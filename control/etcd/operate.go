package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/control"
)

// Entry is one entry below the prefix of all leases.
type Entry struct {
	Key      string        // below that prefix
	Lease    control.Lease // unless Err
	Err      error         // why it cannot be read
	Reserved bool          // it never expires
	TTL      time.Duration // until it expires unless renewed, whole seconds; 0: never, or not known
	State    EntryState
	Why      string // State is refused or unreadable
	Node     string // name of its node, safe to print; empty if that is not known
	Alive    string // its node gives signs of life: yes, no or unknown
}

// Entries returns all entries, sorted by subnet; what is not a lease comes last.
func (s *Store) Entries(ctx context.Context) ([]Entry, error) {
	var entries []Entry
	_, err := s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			l, err := s.keys.Parse(kv)
			entries = append(entries, Entry{Key: s.keys.Name(kv.Key), Lease: l, Err: err, Reserved: kv.Lease == 0})
			entries[len(entries)-1].Lease.Handle = kv.Lease
		}
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.readTTLs(ctx, entries), s.judgeEntries(ctx, entries)); err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		if bad := a.Err != nil; bad != (b.Err != nil) {
			return map[bool]int{true: 1, false: -1}[bad]
		}
		return cmp.Or(a.Lease.Subnet.Addr().Compare(b.Lease.Subnet.Addr()),
			a.Lease.IPv6Subnet.Addr().Compare(b.Lease.IPv6Subnet.Addr()), cmp.Compare(a.Key, b.Key))
	})
	return entries, nil
}

// ttlReaders is how many etcd leases are asked for at once: etcd has no call for many.
const ttlReaders = 16

// readTTLs asks for each etcd lease. One that has expired meanwhile has no TTL.
func (s *Store) readTTLs(ctx context.Context, entries []Entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ttlReaders)
	for i := range entries {
		e := &entries[i]
		if e.Reserved {
			continue
		}
		group.Go(func() error {
			left, _, err := s.rpc.TimeLeft(ctx, leaseID(e.Lease.Handle))
			e.TTL = max(left, 0)
			return err
		})
	}
	return group.Wait()
}

// find returns the entry that name means: name is a subnet or a key.
func (s *Store) find(ctx context.Context, name string) (*mvccpb.KeyValue, error) {
	subnet, notPrefix := netip.ParsePrefix(name)
	var found []*mvccpb.KeyValue
	_, err := s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			v4, v6, err := control.ParseKey(s.keys.Name(kv.Key))
			if s.keys.Name(kv.Key) == name || notPrefix == nil && err == nil && (v4 == subnet || v6 == subnet) {
				found = append(found, kv)
			}
		}
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fmt.Errorf("no entry for %.80q", name)
	case len(found) > 1:
		return nil, fmt.Errorf("%d entries for %s: give the key of one, such as %s", len(found), name, s.keys.Name(found[0].Key))
	}
	return found[0], nil
}
