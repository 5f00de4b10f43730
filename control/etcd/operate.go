package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	var found []*mvccpb.KeyValue
	_, err := s.list(ctx, func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			if means(name, s.keys.Name(kv.Key)) {
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
		return nil, s.ambiguous(ctx, name)
	}
	return found[0], nil
}

// means reports whether name is a key, or one of its subnets.
func means(name, key string) bool {
	subnet, notPrefix := netip.ParsePrefix(name)
	v4, v6, err := control.ParseKey(key)
	return key == name || notPrefix == nil && err == nil && (v4 == subnet || v6 == subnet)
}

// maxNamed bounds how many entries an error names: whoever writes to the store can make as many for one subnet as he likes.
const maxNamed = 10

// ambiguous says which entries a subnet can mean. It recommends none: the caller knows which of them is wrong.
func (s *Store) ambiguous(ctx context.Context, subnet string) error {
	entries, err := s.Entries(ctx)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return !means(subnet, e.Key) })
	var all []string
	for _, e := range entries[:min(len(entries), maxNamed)] {
		var what []string
		if e.Node != "" {
			what = append(what, "node "+e.Node)
		}
		if ip := e.Lease.Identity(); ip.IsValid() {
			what = append(what, ip.String())
		}
		if e.State != EntryUnknown {
			what = append(what, string(e.State))
		}
		all = append(all, fmt.Sprintf("'%s' (%s)", e.Key, strings.Join(what, ", "))) // a key that means a subnet is safe to print
	}
	if more := len(entries) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more, which overlayd lease list -o json shows", more))
	}
	return fmt.Errorf("%d entries for %s: give the key of the one that is meant: %s", len(entries), subnet, strings.Join(all, "; "))
}
