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
	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	// maxUsed is how much of the database clients may use, in bytes. At quotaBytes etcd would take no write any more,
	// until somebody calls RPCs that no client may call; in between is what a database cannot use of its file.
	maxUsed = quotaBytes / 2
	// maxLeases bounds the leases: a node has two.
	maxLeases = 300_000

	spacePeriod   = time.Second
	spacePatience = 5 * time.Second // with a call
	idlePeriods   = 10              // a client has this long to put a key on its lease
	reapers       = 64              // revocations at a time, which etcd writes to disk together
)

// space keeps clients from filling the database. What they do to it ends with what they have written: history is removed when
// half of the room is used, and so are leases that have no key. It is for a server with a guard.
type space struct {
	server         *etcdserver.EtcdServer
	history        *history
	log            *slog.Logger
	used, leases   int64 // the most that there may be
	period         time.Duration
	granted, count atomic.Int64 // leases since they were counted, and then

	compacted int64          // up to this revision
	idle      map[int64]bool // leases without a key, when they were last looked at
	looked    time.Time
	said      bool // the log says that there is no room
}

func newSpace(cfg Config, server *etcdserver.EtcdServer, sources *sources) *space {
	s := &space{server: server, history: newHistory(server, cfg.Log, sources.dropBefore), log: cfg.Log, used: cmp.Or(cfg.maxUsed, maxUsed), leases: cmp.Or(cfg.maxLeases, maxLeases), period: cmp.Or(cfg.spacePeriod, spacePeriod)}
	s.granted.Store(s.leases) // count them first
	return s
}

// isFull reports whether there is no room for a write. It is false as long as the size is not known.
func (s *space) isFull() bool { return s != nil && s.server.Backend().SizeInUse() > s.used }

// grant reports whether there is room for a lease, and takes it.
func (s *space) grant() bool {
	return s == nil || !s.isFull() && s.count.Load()+s.granted.Add(1) <= s.leases
}

// run makes room until ctx ends.
func (s *space) run(ctx context.Context) {
	for {
		s.history.bound(s.server.KV().Rev()) // leases that end write, too
		s.compact(ctx)
		s.stir(ctx)
		s.disarm(ctx)
		s.countLeases(ctx)
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

// countLeases counts the leases if there may be too many.
func (s *space) countLeases(ctx context.Context) {
	granted := s.granted.Load()
	early := time.Since(s.looked) < idlePeriods*s.period
	if granted < s.leases/100 && (early || s.count.Load() < s.leases/2) {
		return
	}
	all, err := s.server.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return // the next time
	}
	s.count.Store(int64(len(all.Leases)))
	s.granted.Add(-granted)
	if int64(len(all.Leases)) < s.leases/2 {
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
	full := s.isFull() || s.count.Load() >= s.leases
	switch {
	case full && !s.said:
		s.log.Error(fmt.Sprintf("embedded etcd takes no new entries: clients may use %d MiB and %d leases, and nothing is left", s.used>>20, s.leases),
			"used", s.server.Backend().SizeInUse(), "leases", s.count.Load(), "fix", "see what fills it: overlayd lease list; etcdctl del removes keys")
	case !full && s.said:
		s.log.Info("embedded etcd takes new entries again")
	}
	s.said = full
}
