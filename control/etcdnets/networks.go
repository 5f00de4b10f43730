// Package etcdnets lists the networks below one prefix of etcd, in the older layout P/<name>/config, and follows them.
package etcdnets

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
)

// maxNames bounds the networks below one prefix.
const maxNames = 4096

// Watch sends the sorted names of all networks below prefix: first those that exist, then all of them again after every
// change, until ctx ends; then it closes the channel. A name that control.CheckNetworkName refuses is logged and left out.
func Watch(ctx context.Context, rpc *etcdrpc.Caller, prefix string, log *slog.Logger) <-chan []string {
	sets := make(chan []string)
	w := &watch{rpc: rpc, prefix: prefix, log: log, sets: sets}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(sets)
		rpc.Sessions(ctx, "networks", w.session)
	}()
	return sets
}

// watch is one run of Watch.
type watch struct {
	rpc     *etcdrpc.Caller
	prefix  string
	log     *slog.Logger
	sets    chan<- []string
	names   map[string]struct{} // of all networks now, refused ones too
	refused []string            // of those, sorted; logged already
	last    []string            // what was sent last
	sent    bool
}

// session lists the networks and then follows the changes, which cost no further reads.
func (w *watch) session(ctx context.Context, listed func()) error {
	at, err := w.listNames(ctx)
	if err == nil {
		err = w.send(ctx)
	}
	if err != nil {
		return err
	}
	listed()
	return w.rpc.Stream(ctx, []etcdrpc.KeyRange{etcdrpc.PrefixRange(w.prefix + "/")}, at, 0, func(events []*mvccpb.Event) error {
		if !w.apply(events) {
			return nil
		}
		return w.send(ctx)
	})
}

// apply takes events over and reports whether one of them was of a network's config.
func (w *watch) apply(events []*mvccpb.Event) (changed bool) {
	for _, e := range events {
		name, key := w.split(e.Kv.Key)
		switch {
		case key != "config" || isReserved(name):
			continue
		case e.Type == mvccpb.Event_DELETE:
			delete(w.names, name)
		default:
			w.names[name] = struct{}{}
		}
		changed = true
	}
	return changed
}

// send waits for the receiver, if the networks are not those that it got last.
func (w *watch) send(ctx context.Context) error {
	if len(w.names) > maxNames {
		return fmt.Errorf("list networks: there are more than %d below %s", maxNames, w.prefix)
	}
	names := w.check(ctx, slices.Sorted(maps.Keys(w.names)))
	if w.sent && slices.Equal(names, w.last) {
		return nil
	}
	select {
	case w.sets <- slices.Clone(names):
		w.last, w.sent = names, true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check returns those of sorted names that control.CheckNetworkName accepts. It logs each other one
// once, until it has been gone.
func (w *watch) check(ctx context.Context, names []string) (good []string) {
	var refused []string
	for _, name := range names {
		err := control.CheckNetworkName(name)
		if err == nil {
			good = append(good, name)
			continue
		}
		refused = append(refused, name)
		if _, logged := slices.BinarySearch(w.refused, name); !logged {
			w.log.WarnContext(ctx, "network ignored", "err", err)
		}
	}
	w.refused = refused
	return good
}

// split returns the name of the network that a key belongs to, and the rest of the key. A key
// right below the prefix has no rest.
func (w *watch) split(key []byte) (name, rest string) {
	name, rest, _ = strings.Cut(strings.TrimPrefix(string(key), w.prefix+"/"), "/")
	return name, rest
}

// isReserved reports whether what is below P/<name>/ belongs to the network at P itself.
func isReserved(name string) bool { return name == "subnets" || name == "overlayd" }

// namePage is how many keys one Range of listNames returns: about 100 kB.
const namePage = 1000

// listNames reads the names of all networks, and returns the header of the first answer. It reads keys without
// their values, a page at a time, and skips what a page shows of a network that is longer than
// the page: so the leases of a large network cost one more read and not all of theirs.
func (w *watch) listNames(ctx context.Context) (at *pb.ResponseHeader, err error) {
	var revision int64 // at first the present one
	w.names = map[string]struct{}{}
	prefix := w.prefix + "/"
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		resp, err := w.keysAt(ctx, from, revision, clientv3.WithRange(end), clientv3.WithLimit(namePage))
		if err != nil {
			return nil, err
		}
		if at == nil {
			at, revision = resp.Header, resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if name, rest := w.split(kv.Key); rest == "config" && !isReserved(name) {
				w.names[name] = struct{}{}
			}
		}
		if !resp.More || len(resp.Kvs) == 0 || len(w.names) > maxNames {
			return at, nil
		}
		from = w.after(resp.Kvs[len(resp.Kvs)-1].Key)
	}
}

// after returns the first key behind a key that can be a network's config.
func (w *watch) after(key []byte) string {
	name, rest := w.split(key)
	switch {
	case rest == "":
		return string(key) + "\x00"
	case rest < "config" && !isReserved(name):
		return w.prefix + "/" + name + "/config"
	}
	return w.prefix + "/" + name + "0" // what sorts behind all that begins with name/
}

// keysAt reads keys without values, at a revision unless that is 0.
func (w *watch) keysAt(ctx context.Context, from string, revision int64, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	opts = append(opts, clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	err = w.rpc.Call(ctx, "list networks", func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Get(ctx, from, opts...)
		return err
	})
	return resp, err
}
