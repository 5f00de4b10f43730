package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// small starts a server with little room, and connects to it.
func small(t *testing.T, cfg Config) (*Server, *clientv3.Client, *netnstest.Log) {
	t.Helper()
	log := new(netnstest.Log)
	cfg.ListenClient, cfg.Prefix, cfg.NoFsync, cfg.spacePeriod = "http://"+FreeAddress(t), "/p", true, 20*time.Millisecond
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.address()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c, log
}

// soon waits until something is so.
func soon(t *testing.T, what string, is func() error) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestNobodyFillsTheDatabase: who writes one key for ever only makes history, which is removed; who writes many is refused in
// time, as are the others, and what he has written can be deleted.
func TestNobodyFillsTheDatabase(t *testing.T) {
	t.Parallel()
	const room = 4 << 20
	const lag = 64 << 20 // what is written until etcd says that it is used, within 0.1 s
	s, c, log := small(t, Config{Dir: t.TempDir(), maxUsed: room})
	ctx, value := t.Context(), strings.Repeat("x", maxPut)
	for range 3 * room / maxPut {
		soon(t, "one key again", func() error { _, err := c.Put(ctx, "/p/one", value); return err })
	}
	var refused error
	n := 0
	for ; refused == nil && n < 2000; n++ {
		for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) { // history is still being removed
			if _, refused = c.Put(ctx, fmt.Sprintf("/p/junk/%d", n), value); refused == nil || time.Now().After(end) {
				break
			}
		}
	}
	if !errors.Is(refused, rpctypes.ErrNoSpace) || n < room/maxPut/2 {
		t.Fatalf("after %d keys: %v", n, refused)
	}
	if used := s.etcd.Server.Backend().SizeInUse(); used > room+lag {
		t.Errorf("%d bytes are used, of %d", used, room)
	}
	_, txn := c.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/p/x", "")}, nil)).Commit()
	if _, grant := c.Grant(ctx, 60); !errors.Is(txn, rpctypes.ErrNoSpace) || !errors.Is(grant, rpctypes.ErrNoSpace) {
		t.Errorf("a transaction: %v; a lease: %v", txn, grant)
	}
	soon(t, "a line in the log", func() error {
		if log.Count("takes no new entries") == 0 {
			return errors.New("none")
		}
		return nil
	})
	if _, err := c.Get(ctx, "/p/one"); err != nil {
		t.Error(err)
	}
	if _, err := c.Delete(ctx, "/p/junk/", clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
	soon(t, "a write after that", func() error { _, err := c.Put(ctx, "/p/good", "y"); return err })
	soon(t, "a line in the log", func() error {
		if log.Count("takes new entries again") != log.Count("takes no new entries") {
			return errors.New("none")
		}
		return nil
	})
	if a := s.etcd.Server.Alarms(); len(a) > 0 {
		t.Errorf("etcd itself has raised %v", a)
	}
}

// TestNobodyTakesAllLeases: those without a key make room, and those with one stay.
func TestNobodyTakesAllLeases(t *testing.T) {
	t.Parallel()
	const room = 200
	_, c, _ := small(t, Config{Dir: t.TempDir(), maxLeases: room})
	ctx := t.Context()
	good, err := c.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "/p/good", "y", clientv3.WithLease(good.ID)); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	var refused atomic.Bool
	for range 8 {
		wait.Go(func() {
			for range 100 * room {
				if _, err := c.Grant(ctx, 1<<30); errors.Is(err, rpctypes.ErrNoSpace) || refused.Load() {
					refused.Store(true)
					return
				}
			}
		})
	}
	if wait.Wait(); !refused.Load() {
		t.Error("none was refused")
	}
	soon(t, "another lease", func() error { _, err := c.Grant(ctx, 60); return err })
	if l, err := c.TimeToLive(ctx, good.ID, clientv3.WithAttachedKeys()); err != nil || len(l.Keys) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestNobodyMakesAllKeys: one key that is written again and again is one; with too many nothing more is written until some are deleted.
func TestNobodyMakesAllKeys(t *testing.T) {
	t.Parallel()
	const room = 200
	_, c, log := small(t, Config{Dir: t.TempDir(), maxKeys: room})
	ctx := t.Context()
	for range 3 * room {
		soon(t, "one key again", func() error { _, err := c.Put(ctx, "/p/one", "y"); return err })
	}
	var refused error
	n := 0
	for ; refused == nil && n < 10*room; n++ {
		for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) { // they are counted again
			_, refused = c.Txn(ctx).Then(clientv3.OpPut(fmt.Sprint("/p/a/", n), ""), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(fmt.Sprint("/p/b/", n), "")}, nil)).Commit()
			if refused == nil || time.Now().After(end) {
				break
			}
		}
	}
	if !errors.Is(refused, rpctypes.ErrNoSpace) || n < room/4 || n > room {
		t.Fatalf("after %d keys: %v", 2*n, refused)
	}
	soon(t, "a line in the log", func() error {
		if log.Count("takes no new entries") == 0 {
			return errors.New("none")
		}
		return nil
	})
	for _, prefix := range []string{"/p/a/", "/p/b/"} {
		if _, err := c.Delete(ctx, prefix, clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	}
	soon(t, "a write after that", func() error { _, err := c.Put(ctx, "/p/good", "y"); return err })
}

// TestSpaceAlarm: etcd's own alarm, which no client may take back, ends with the want of space.
func TestSpaceAlarm(t *testing.T) {
	t.Parallel()
	s, c, _ := small(t, Config{Dir: t.TempDir()})
	id := uint64(s.etcd.Server.MemberID())
	if _, err := s.etcd.Server.Alarm(context.Background(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	soon(t, "a write", func() error { _, err := c.Put(t.Context(), "/p/x", "y"); return err })
}
