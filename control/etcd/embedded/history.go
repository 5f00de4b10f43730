package embedded

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/grpc/status"
)

const (
	// maxHistory bounds the changes that etcd keeps for watches, in bytes: at least 2000 changes of a lease, and at most twice as many.
	maxHistory = 4 << 20
	// ofChange is what a change counts for beside its key and value: etcd has it in memory once more for each watch that gets it.
	ofChange = 512
	// countAtOnce is how many revisions are counted at a time. etcd cannot write meanwhile.
	countAtOnce = 32

	// catchUp is how long etcd has to find the changes that a watch wants, and catchUpMore for each MiB of them: at most 1000 revisions come
	// in a tenth of a second.
	catchUp     = 500 * time.Millisecond
	catchUpMore = 400 * time.Millisecond
)

// history bounds the changes that a watch from an old revision can ask for. etcd reads them for each group of such watches as a whole, before
// anybody sees how much that is, and keeps what clients do not take. What is older is compacted: who lags behind that far has to list again.
type history struct {
	server *etcdserver.EtcdServer
	log    *slog.Logger
	moved  func(oldest int64) // called when the history has lost all before a revision

	reading sync.RWMutex // held while the database is read
	closed  bool         // the database is about to be closed

	mu      sync.Mutex
	next    int64 // the first revision that is not counted
	younger int64 // the first revision of the younger half; 0: there is no older half
	bytes   int64 // of the younger half
}

func newHistory(server *etcdserver.EtcdServer, log *slog.Logger, moved func(oldest int64)) *history {
	return &history{server: server, log: log, moved: moved, next: max(1, server.KV().FirstRev())}
}

// bound counts the changes up to a revision. If the younger half of the history is full then, the older half goes.
func (h *history) bound(upTo int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	oldest := int64(0)
	for h.next <= upTo {
		last := min(h.next+countAtOnce-1, upTo)
		h.bytes += h.size(h.next, last)
		if h.next = last + 1; h.bytes >= maxHistory/2 {
			oldest, h.younger, h.bytes = h.younger, h.next, 0
		}
	}
	if oldest == 0 || oldest <= h.server.KV().FirstRev() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), spacePatience) // whoever writes may have gone
	defer cancel()
	_, err := h.server.Compact(ctx, &pb.CompactionRequest{Revision: oldest})
	if h.moved(oldest); err != nil {
		h.log.Debug("embedded etcd: compact the history", "revision", oldest, "err", err)
	}
}

// wrote bounds the history after a write. The writers wait for that: else a fast one would be ahead of it.
func (h *history) wrote(answer any) {
	if a, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		h.bound(a.GetHeader().GetRevision())
	}
}

// since returns how much a watch from a revision asks for, up to maxHistory.
func (h *history) since(revision int64) (bytes int64) {
	kv := h.server.KV()
	if revision <= 0 || revision < kv.FirstRev() { // it gets nothing old
		return 0
	}
	for now := kv.Rev(); revision <= now && bytes < maxHistory; revision += countAtOnce {
		bytes += h.size(revision, min(revision+countAtOnce-1, now))
	}
	return min(bytes, maxHistory)
}

// close keeps streams that have not ended yet from reading a database that is closed: etcd would panic.
func (h *history) close() {
	h.reading.Lock()
	defer h.reading.Unlock()
	h.closed = true
}

// size returns how much the changes of some revisions count for.
func (h *history) size(first, last int64) (bytes int64) {
	from, end := mvcc.RevToBytes(mvcc.Revision{Main: first}, mvcc.NewRevBytes()), mvcc.RevToBytes(mvcc.Revision{Main: last + 1}, mvcc.NewRevBytes())
	h.reading.RLock()
	defer h.reading.RUnlock()
	if h.closed {
		return 0
	}
	tx := h.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()                                     // what it returns is the database's own memory
	_, changes := tx.UnsafeRange(schema.Key, from, end, 0) // with a limit it would skip what is on disk
	for _, c := range changes {
		bytes += int64(len(c)) + ofChange
	}
	return bytes
}

// catchUp takes room for a watch that asks for old changes of that many bytes, and waits if there is none. All watches of one address share a room of
// maxHistory bytes. The watch gives its room back after etcd has had time to read the changes, and once the client has taken them.
func (l *limitedStream) catchUp(bytes int64) error {
	conn, isTracked := l.Context().Value(connKey{}).(*trackedConn)
	if !isTracked {
		return nil
	}
	of := l.answers.sources.find(conn)
	if of == nil {
		return net.ErrClosed
	}
	l.addCatches(1)
	if err := of.lagging.Acquire(l.Context(), bytes); err != nil {
		l.addCatches(-1)
		return status.FromContextError(err).Err()
	}
	var leave func()
	leave = func() {
		if l.lagsBehind(math.MaxInt64) || !conn.unsent.isAtRest() {
			time.AfterFunc(catchUp, leave)
			return
		}
		of.lagging.Release(bytes)
		l.addCatches(-1)
	}
	time.AfterFunc(catchUp+time.Duration(bytes)*catchUpMore>>20, leave)
	return nil
}

func (l *limitedStream) addCatches(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catches += n
}

// keepUp is for a stream whose client has not taken changes of that many bytes yet. If the stream's queue in etcd is full, etcd drops the changes, and
// reads them again later. So the stream needs the same room as a watch that catches up. A stream that has room already asks for no more. It would wait
// for the others and keep its own room from them.
func (l *limitedStream) keepUp(bytes int64) error {
	l.mu.Lock()
	catches := l.catches > 0
	l.mu.Unlock()
	if catches || bytes < maxHistory/8 {
		return nil
	}
	return l.catchUp(bytes)
}

// sends notes which message is being sent; nil: none.
func (l *limitedStream) sends(m any) {
	r, _ := m.(*pb.WatchResponse)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = r.GetHeader().GetRevision()
}

// lagsBehind reports whether a message of before a revision is still being sent.
func (l *limitedStream) lagsBehind(revision int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at > 0 && l.at < revision && !l.ended
}

// dropBefore closes the connections whose client has not taken what was before a revision: all that came later waits in etcd for them.
func (s *sources) dropBefore(revision int64) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, l := range all {
		if conn, isTracked := l.Context().Value(connKey{}).(*trackedConn); isTracked && l.lagsBehind(revision) {
			_ = conn.Close() // its error would be about a connection that is dead
		}
	}
}
