// Package etcdnets lists the networks below one prefix of etcd, in the older layout P/<name>/config, and follows them.
package etcdnets

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// Watch sends the sorted names of the networks below prefix: first those that exist, then all of them again after every
// change, until ctx ends; then it closes the channel. A name that control.CheckNetworkName refuses is logged and left out.
// Of networks with a config that can be read it sends the 4096 oldest, and of others the 16 oldest: nobody who writes names
// there takes the place of a network that works. What a list of another etcd, or of an older state of it, lacks has not gone.
func Watch(ctx context.Context, rpc *etcdrpc.Caller, prefix string, log *slog.Logger) <-chan []string {
	sets := make(chan []string)
	w := &watch{rpc: rpc, prefix: prefix, log: log, sets: sets, all: newNetworks(), kept: map[string]bool{}}
	go func() { // ends with ctx, which the close of the channel tells the receiver
		defer close(sets)
		rpc.Sessions(ctx, "networks", w.session)
	}()
	return sets
}

// watch is one run of Watch.
type watch struct {
	rpc    *etcdrpc.Caller
	prefix string
	log    *slog.Logger
	sets   chan<- []string
	all    *networks
	kept   map[string]bool    // of all: what only an etcd before this one, or a later state of it, had
	at     *pb.ResponseHeader // of the newest list or event
	last   []string           // what was sent last
	sent   bool

	badNames, badConfigs, tooMany, notThere pace.Notices
}

// session lists the networks and then follows the changes, which cost no further reads.
func (w *watch) session(ctx context.Context, listed func()) error {
	found := newNetworks()
	at, err := w.rpc.Scan(ctx, "list networks", etcdrpc.PrefixRange(w.prefix+"/"), namePage, 0, func(kvs []*mvccpb.KeyValue) string {
		for _, kv := range kvs {
			w.put(ctx, found, kv)
		}
		return w.after(kvs[len(kvs)-1].Key)
	})
	if err != nil {
		return err
	}
	if err := w.keep(ctx, found, at); err != nil {
		return err
	}
	w.all = found
	if err := w.send(ctx); err != nil {
		return err
	}
	listed()
	since := time.Now()
	return w.rpc.Stream(ctx, []etcdrpc.KeyRange{etcdrpc.PrefixRange(w.prefix + "/")}, at, 0, func(events []*mvccpb.Event) error {
		for _, e := range events {
			w.at.Revision = max(w.at.Revision, e.Kv.ModRevision)
		}
		if w.apply(ctx, events) {
			if err := w.send(ctx); err != nil {
				return err
			}
		}
		if w.all.hasRoom() && time.Since(since) > listForRoom {
			return etcdrpc.ErrRelist
		}
		return nil
	})
}

// listForRoom is how long a list counts, when an event comes, if others of its networks may have room: whoever makes too many can make room, too.
const listForRoom = 30 * time.Second

// keep adds to a list, found, what it lacks because etcd was emptied, replaced or restored from a backup: nobody has deleted that, and its
// packets go on. It stays until its config is deleted.
func (w *watch) keep(ctx context.Context, found *networks, at *pb.ResponseHeader) error {
	for _, name := range w.last {
		if found.has(name) || w.kept[name] {
			continue
		}
		deleted, err := w.wasDeleted(ctx, name, found, at)
		if err != nil {
			return err
		}
		if !deleted {
			w.kept[name] = true
		}
	}
	w.at = at
	for name := range w.kept {
		if found.has(name) {
			delete(w.kept, name)
			continue
		}
		found.put(name, 0)
	}
	if len(w.kept) == 0 {
		return nil
	}
	names := control.Printable(strings.Join(slices.Sorted(maps.Keys(w.kept)), " "), control.FaultBytes)
	if due, _ := w.notThere.Due(time.Now(), pace.Notice{Text: names}); len(due) > 0 {
		w.log.WarnContext(ctx, "networks are not in etcd, and it does not tell whether they were deleted: they are kept", "networks", names,
			"fix", "write their configs again; to give a network up, write its config and delete it, or restart overlayd")
	}
	return nil
}

// wasDeleted reports whether a network that a list of this moment lacks was deleted since the last one. Then etcd still has the config as it was at that time, which one that was
// emptied or restored has not, even if its revision is ahead again. If that was compacted away, a network that was created later, and is found, tells as much.
func (w *watch) wasDeleted(ctx context.Context, name string, found *networks, at *pb.ResponseHeader) (deleted bool, err error) {
	if at.ClusterId != w.at.ClusterId || at.Revision < w.at.Revision {
		return false, nil
	}
	key, created := w.prefix+"/"+name+"/config", w.all.created(name)
	_, err = w.rpc.Scan(ctx, "look at a network that has gone", etcdrpc.KeyRange{From: key, End: etcdrpc.After([]byte(key))}, 1, w.at.Revision, func(kvs []*mvccpb.KeyValue) string {
		deleted = deleted || kvs[0].CreateRevision == created
		return etcdrpc.After(kvs[0].Key)
	})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
		return slices.ContainsFunc(w.last, func(other string) bool {
			return w.all.created(other) > created && found.created(other) == w.all.created(other)
		}), nil
	}
	return deleted, err
}

// apply takes events over and reports whether one of them changes what is to be sent.
func (w *watch) apply(ctx context.Context, events []*mvccpb.Event) (changed bool) {
	for _, e := range events {
		if e.Type != mvccpb.Event_DELETE {
			changed = w.put(ctx, w.all, e.Kv) || changed
		} else if name, key := w.split(e.Kv.Key); key == "config" {
			if control.CheckNetworkName(name) == nil { // else it does not count
				w.all.remove(name)
			}
			delete(w.kept, name)
			_, served := slices.BinarySearch(w.last, name)
			changed = changed || served
		}
	}
	return changed
}

// put adds a key to all if it is a network's config, and reports whether that changes what is to be sent. A network that had
// a usable config is served on whatever it has now.
func (w *watch) put(ctx context.Context, all *networks, kv *mvccpb.KeyValue) (changed bool) {
	name, key := w.split(kv.Key)
	if key != "config" || isReserved(name) {
		return false
	}
	delete(w.kept, name)
	if err := control.CheckNetworkName(name); err != nil {
		w.warn(ctx, &w.badNames, "network ignored", name, err)
		return false
	}
	if all.omits(name, kv.CreateRevision, kv.ModRevision != kv.CreateRevision) {
		return false
	}
	if _, err := control.ParseNetwork(kv.Value); err != nil && w.all.usable[name] != kv.CreateRevision {
		w.warn(ctx, &w.badConfigs, "network config is not usable", name, err)
		return all.putBad(name, kv.CreateRevision)
	}
	return all.put(name, kv.CreateRevision)
}

// warn logs what is wrong with a network, as often as notices allow.
func (w *watch) warn(ctx context.Context, notices *pace.Notices, text, name string, err error) {
	fault := control.Printable(err.Error(), control.FaultBytes)
	due, more := notices.Due(time.Now(), pace.Notice{Key: control.Printable(name, 80), Text: fault})
	for _, n := range due {
		w.log.WarnContext(ctx, text, "network", n.Key, "err", n.Text)
	}
	if more > 0 {
		w.log.WarnContext(ctx, text+": and more", "count", more)
	}
}

// send waits for the receiver, if the networks are not those that it got last.
func (w *watch) send(ctx context.Context) error {
	names, left := w.all.names()
	if left > 0 {
		if due, _ := w.tooMany.Due(time.Now(), pace.Notice{}); len(due) > 0 {
			w.log.WarnContext(ctx, "more networks than are served: the oldest are", "served", len(names), "not_served", left, "fix", "remove those that nobody needs")
		}
	}
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

// split returns the name of the network that a key belongs to, and the rest of the key. A key
// right below the prefix has no rest.
func (w *watch) split(key []byte) (name, rest string) {
	name, rest, _ = strings.Cut(strings.TrimPrefix(string(key), w.prefix+"/"), "/")
	return name, rest
}

// isReserved reports whether what is below P/<name>/ belongs to the network at P itself.
func isReserved(name string) bool { return name == "subnets" || name == "overlayd" }

// namePage is how many keys one Range reads: about 300 kB. It shows the configs of many networks, and what a page shows of one
// network is skipped if it is longer than the page: so the leases of a large network cost one more read and not all of theirs.
const namePage = 1000

// after returns the first key behind a key that can be a network's config.
func (w *watch) after(key []byte) string {
	name, rest := w.split(key)
	switch {
	case rest == "":
		return etcdrpc.After(key)
	case rest < "config" && !isReserved(name):
		return w.prefix + "/" + name + "/config"
	}
	return w.prefix + "/" + name + "0" // what sorts behind all that begins with name/
}
