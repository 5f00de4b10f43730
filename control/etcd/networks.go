package etcd

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
)

// maxNames bounds what is looked at below the prefix.
const maxNames = 4096

// CheckNetworkName says what is wrong with the name of a network of the layout
// P/<name>/config: it is a part of keys and of file names. What begins with subnets is
// refused because a flanneld takes all that begins with P/subnets for leases (facts D1).
func CheckNetworkName(name string) error {
	ok, _ := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`, name)
	switch {
	case !ok:
		return fmt.Errorf("network name %.80q: want 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or a digit", name)
	case strings.HasPrefix(name, "subnets") || name == "overlayd" || name == "config":
		return fmt.Errorf("network name %q: what begins with subnets, overlayd and config are keys of their own below the etcd prefix", name)
	}
	return nil
}

// WatchNetwork sends the network config as it is, and again whenever it has become
// another, until ctx ends; then it closes the channel. A config that is missing or not valid is
// logged and changes nothing. Of what a slow receiver misses it gets the last.
func (s *Store) WatchNetwork(ctx context.Context) <-chan control.Network {
	networks := make(chan control.Network)
	var last control.Network
	var said string
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(networks)
		s.followKeys(ctx, "network config", keyRange{from: s.keys.config()}, nil, func(ctx context.Context) (int64, error) {
			got, err := s.get(ctx, "read network config", s.keys.config())
			if err != nil {
				return 0, err
			}
			n, err := s.parseNetwork(got)
			if err != nil {
				if err.Error() != said {
					said = err.Error()
					s.log.WarnContext(ctx, "network config not usable, going on with the last one", "err", err)
				}
				return got.Header.Revision, nil
			}
			said = ""
			if n != last {
				select {
				case networks <- n:
					last = n
				case <-ctx.Done():
				}
			}
			return got.Header.Revision, nil
		})
	}()
	return networks
}

// Networks sends the sorted names of all networks of the older layout, P/<name>/config with
// P the Store's prefix: first those that there are, then all of them again after every
// change, until ctx ends; then it closes the channel. The store of such a network
// is one with the prefix P/<name>. A name that CheckNetworkName refuses is logged and left out.
func (s *Store) Networks(ctx context.Context) <-chan []string {
	sets := make(chan []string)
	var last []string
	sent := false
	var refused []string
	isConfig := func(key string) bool {
		parts := strings.Split(strings.TrimPrefix(key, s.cfg.Prefix+"/"), "/")
		return len(parts) == 2 && parts[1] == "config"
	}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(sets)
		s.followKeys(ctx, "networks", prefixRange(s.cfg.Prefix+"/"), isConfig, func(ctx context.Context) (int64, error) {
			names, revision, err := s.listNetworks(ctx)
			if err != nil {
				return 0, err
			}
			names, refused = s.checkNames(ctx, names, refused)
			if sent && slices.Equal(names, last) {
				return revision, nil
			}
			select {
			case sets <- slices.Clone(names):
				last, sent = names, true
			case <-ctx.Done():
			}
			return revision, nil
		})
	}()
	return sets
}

// checkNames parts sorted names into networks and what CheckNetworkName refuses, which is
// logged unless said has it.
func (s *Store) checkNames(ctx context.Context, names, said []string) (good, refused []string) {
	for _, name := range names {
		err := CheckNetworkName(name)
		if err == nil {
			good = append(good, name)
			continue
		}
		refused = append(refused, name)
		if _, ok := slices.BinarySearch(said, name); !ok {
			s.log.WarnContext(ctx, "network ignored", "err", err)
		}
	}
	return good, refused
}

// followKeys calls read, which returns the revision that it has read at, and again after
// every change of a key in the range that concerns it. nil concerns: all do.
func (s *Store) followKeys(ctx context.Context, what string, keys keyRange, concerns func(key string) bool, read func(context.Context) (int64, error)) {
	s.sessions(ctx, what, func(ctx context.Context, listed func()) error {
		revision, err := read(ctx)
		if err != nil {
			return err
		}
		listed()
		return s.stream(ctx, keys, revision+1, func(events []*mvccpb.Event) error {
			if concerns == nil || slices.ContainsFunc(events, func(e *mvccpb.Event) bool { return concerns(string(e.Kv.Key)) }) {
				return errRelist
			}
			return nil
		})
	})
}

// listNetworks returns what stands between the prefix and /config, sorted. It goes from one
// name to the next, so that the leases below them need not be read.
func (s *Store) listNetworks(ctx context.Context) (names []string, revision int64, err error) {
	prefix := s.cfg.Prefix + "/"
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for range maxNames {
		resp, err := s.keysAt(ctx, from, revision, clientv3.WithRange(end), clientv3.WithLimit(1))
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		if len(resp.Kvs) == 0 {
			slices.Sort(names) // red-2/ stands before red/
			return names, revision, nil
		}
		key := string(resp.Kvs[0].Key)
		name, _, below := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if !below {
			from = key + "\x00"
			continue
		}
		from = prefix + name + "0" // what sorts behind all that begins with name/
		if name == "subnets" || name == "overlayd" {
			continue
		}
		if resp, err = s.keysAt(ctx, prefix+name+"/config", revision); err != nil {
			return nil, 0, err
		}
		if len(resp.Kvs) > 0 {
			names = append(names, name)
		}
	}
	return nil, 0, fmt.Errorf("list networks: more than %d keys below %s", maxNames, prefix)
}

// keysAt reads keys without values, at a revision unless that is 0.
func (s *Store) keysAt(ctx context.Context, from string, revision int64, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	opts = append(opts, clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	err = s.call(ctx, "list networks", func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Get(ctx, from, opts...)
		return err
	})
	return resp, err
}
