package history_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/overlayd/overlayd/control/etcd/embedded"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)        // hundreds of small clients and servers in one process
	wal.SegmentSizeBytes = 1 << 20 // histories copy their etcd's data
	goleak.VerifyTestMain(m)
}

// world is a real etcd that many histories share, each below a prefix of its own, or one history has alone.
type world struct {
	dir    string // of the data and the sockets
	server *embedded.Server
	client *clientv3.Client // of the driver: no link is between it and etcd
	conn   *grpc.ClientConn // of all links
	states int              // how many directories with data there are
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w, err := openWorld()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.close)
	return w
}

// openWorld starts an etcd without any data. The caller must close it.
func openWorld() (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "history"); err != nil { // tb.TempDir is too long for a socket
		return nil, err
	}
	if err := w.start(w.newState()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.dir))
	}
	quick := grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 100 * time.Millisecond}})
	w.client, err = clientv3.New(clientv3.Config{Endpoints: []string{w.url()}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{quick}})
	if err != nil {
		w.stop()
		return nil, errors.Join(err, os.RemoveAll(w.dir))
	}
	w.conn = w.client.ActiveConnection()
	return w, nil
}

func (w *world) close() {
	w.client.Close()
	w.stop()
	os.RemoveAll(w.dir)
}

// stop stops etcd, however long that takes on a busy machine.
func (w *world) stop() {
	_ = w.server.Stop() // an error: it takes long
	for range w.server.Err() {
	}
}

func (w *world) url() string { return "unix://" + filepath.Join(w.dir, "etcd") }

// newState returns the name of a directory for data that does not exist yet.
func (w *world) newState() string {
	w.states++
	return filepath.Join(w.dir, fmt.Sprint("data", w.states))
}

// start starts etcd with the data in a directory in which none was started yet: one that took long to stop keeps its lock.
func (w *world) start(state string) (err error) {
	w.server, err = embedded.Start(context.Background(), embedded.Config{Dir: state, ListenClient: w.url(), NoFsync: true})
	return err
}

// copied returns the name of a new copy of a state.
func (w *world) copied(state string) (copied string, err error) {
	copied = w.newState()
	return copied, os.CopyFS(copied, os.DirFS(state))
}
