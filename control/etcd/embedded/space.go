package embedded

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	// maxUsed is how much of the database clients may use, in bytes. At quotaBytes etcd would take no write any more,
	// until somebody calls RPCs that no client may call; in between is what a database cannot use of its file.
	maxUsed = quotaBytes / 2
	// maxLeases bounds the leases: a node has two. maxKeys bounds the keys, which etcd has in memory: some 400 bytes for each.
	maxLeases, maxKeys = 300_000, 300_000

	spacePeriod   = time.Second
	spacePatience = 5 * time.Second // with a call
	idlePeriods   = 10              // a client has this long to put a key on its lease
	reapers       = 64              // revocations at a time, which etcd writes to disk together
)

// space keeps clients from filling the database. What they do to it ends with what they have written: history is removed when
// half of the room is used, and so are leases that have no key. It is for a server with a guard.
type space struct {
	server       *etcdserver.EtcdServer
	history      *history
	log          *slog.Logger
	used         int64 // the most that there may be, in bytes
	leases, keys tally
	period       time.Duration

	compacted   int64 // up to this revision
	keysCounted time.Time
	idle        map[int64]bool // leases without a key, when they were last looked at
	looked      time.Time
	said        bool // the log says that there is no room
}

func newSpace(cfg Config, server *etcdserver.EtcdServer, sources *sources) *space {
	s := &space{server: server, history: newHistory(server, cfg.Log, sources.dropBefore), log: cfg.Log, used: cmp.Or(cfg.maxUsed, maxUsed), period: cmp.Or(cfg.spacePeriod, spacePeriod)}
	s.leases.max, s.keys.max = cmp.Or(cfg.maxLeases, maxLeases), cmp.Or(cfg.maxKeys, maxKeys)
	s.leases.since.Store(s.leases.max) // count them first
	s.keys.since.Store(s.keys.max)
	return s
}

// tally knows how many there are of something that clients make.
type tally struct {
	max          int64        // that there may be
	count, since atomic.Int64 // when they were last counted, and the most that may have been made since
}

// add notes that n more are to be made, and reports whether there is room for them.
func (t *tally) add(n int) bool { return t.count.Load()+t.since.Add(int64(n)) <= t.max }

// counted notes how many there are. since is what it was before they were counted.
func (t *tally) counted(n int, since int64) {
	t.count.Store(int64(n))
	t.since.Add(-since)
}

// isFull reports whether hardly anything can be made any more.
func (t *tally) isFull() bool { return t.count.Load() >= t.max-t.max/100 }

// isDue reports whether there may be too many soon. early: they were counted not long ago.
func (t *tally) isDue(early bool) bool {
	return t.since.Load() >= t.max/100 || !early && t.count.Load() >= t.max/2
}

// isFull reports whether there is no room for a write. It is false as long as the size is not known.
func (s *space) isFull() bool { return s != nil && s.server.Backend().SizeInUse() > s.used }

// grant reports whether there is room for a lease, and takes it.
func (s *space) grant() bool {
	return s == nil || !s.isFull() && s.leases.add(1)
}

// put reports whether there is room for what so many puts write; 0: it is no write. A key that exists counts until the keys are counted again.
func (s *space) put(n int) bool {
	return s == nil || n == 0 || !s.isFull() && s.keys.add(n)
}

// run makes room until ctx ends.
func (s *space) run(ctx context.Context) {
	for {
		s.history.bound(s.server.KV().Rev()) // leases that end write, too
		s.compact(ctx)
		s.stir(ctx)
		s.disarm(ctx)
		s.countLeases(ctx)
		s.countKeys(ctx)
		s.tell()
		if !pace.Sleep(ctx, s.period, nil) {
			return
		}
	}
}

// compact removes the history if half of the room is used: a client may have written one key again and again.
func (s *space) compact(ctx context.Context) {
	now := s.server.KV().Rev()
	if s.server.Backend().SizeInUse() <= s.used/2 || now == s.compacted {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, spacePatience)
	defer cancel()
	if _, err := s.server.Compact(ctx, &pb.CompactionRequest{Revision: now}); err == nil {
		s.compacted = now
	}
}

// stir writes something if there is no room. The database frees deleted data only at the next write, and
// clients cannot write now.
func (s *space) stir(ctx context.Context) {
	if !s.isFull() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, spacePatience)
	defer cancel()
	l, err := s.server.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64(time.Minute / time.Second)})
	if err == nil {
		_, err = s.server.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID})
	}
	if err != nil {
		s.log.Debug("embedded etcd: make room", "err", err)
	}
}

// disarm takes back etcd's own alarm once there is room, such as one of an older version.
func (s *space) disarm(ctx context.Context) {
	for _, a := range s.server.Alarms() {
		if a.Alarm != pb.AlarmType_NOSPACE || s.isFull() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, spacePatience)
		err := s.server.Backend().Defrag()
		if err == nil {
			_, err = s.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm})
		}
		if cancel(); err != nil {
			s.log.Warn("embedded etcd takes no writes: its space was used up, and it cannot be told that there is room again", "err", err)
		}
	}
}

// countKeys counts the keys if there may be too many.
func (s *space) countKeys(ctx context.Context) {
	since := s.keys.since.Load()
	if !s.keys.isDue(time.Since(s.keysCounted) < idlePeriods*s.period) {
		return
	}
	s.keysCounted = time.Now()
	all, err := s.server.KV().Range(ctx, []byte{0}, []byte{}, mvcc.RangeOptions{CountOnly: true})
	if err != nil {
		return // the next time
	}
	s.keys.counted(all.Count, since)
}

// countLeases counts the leases if there may be too many.
func (s *space) countLeases(ctx context.Context) {
	since := s.leases.since.Load()
	early := time.Since(s.looked) < idlePeriods*s.period
	if !s.leases.isDue(early) {
		return
	}
	all, err := s.server.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return // the next time
	}
	if s.leases.counted(len(all.Leases), since); int64(len(all.Leases)) < s.leases.max/2 {
		s.idle = nil
		return
	}
	if !early {
		s.looked = time.Now()
		s.reap(ctx, all.Leases)
	}
}

// reap removes the leases that had no key the last time, and have none now.
func (s *space) reap(ctx context.Context, all []*pb.LeaseStatus) {
	idle := map[int64]bool{}
	var wait errgroup.Group
	wait.SetLimit(reapers)
	for _, l := range all {
		ttl, err := s.server.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: l.ID, Keys: true})
		if err != nil || len(ttl.Keys) > 0 {
			continue
		}
		if idle[l.ID] = true; s.idle[l.ID] {
			wait.Go(func() error {
				_, err := s.server.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID})
				return err
			})
		}
	}
	if err := wait.Wait(); err != nil {
		s.log.Debug("embedded etcd: leases without a key", "err", err)
	}
	s.idle = idle
}

// tell logs when there is no room, and when there is again.
func (s *space) tell() {
	full := s.isFull() || s.leases.isFull() || s.keys.isFull()
	switch {
	case full && !s.said:
		s.log.Error(fmt.Sprintf("embedded etcd takes no new entries: clients may use %d MiB, %d leases and %d keys, and nothing is left", s.used>>20, s.leases.max, s.keys.max),
			"used", s.server.Backend().SizeInUse(), "leases", s.leases.count.Load(), "keys", s.keys.count.Load(), "fix", "see what fills it: overlayd lease list; etcdctl del removes keys")
	case !full && s.said:
		s.log.Info("embedded etcd takes new entries again")
	}
	s.said = full
}
