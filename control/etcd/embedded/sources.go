package embedded

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
)

const (
	// maxUnits is how much one address may have under way at once if it may be anybody's, and trustedUnits if it has a certificate: a
	// daemon that watches networks has one or two streams for each. For a stream of watches etcd has goroutines and a queue.
	maxUnits, trustedUnits = 512, 65536
	unitsOfWatch           = 4
	// watchSending bounds, in bytes, what waits for one address in streams of watches.
	watchSending = 4 << 20
)

// sources knows what each TCP address has under way: with every RPC and every message that waits a client takes memory.
type sources struct {
	refuse func(why, who string, err error) // nil: nobody is told
	max    int                              // units of one address

	mu      sync.Mutex
	all     map[netip.Addr]*source
	streams map[*limitedStream]struct{}
}

// source is of one address.
type source struct {
	units   int
	conns   map[*trackedConn]int // units of each
	sending *semaphore.Weighted
	lagging *semaphore.Weighted // bytes of old changes that watches are about to get
}

// admit implements tap.ServerInHandle: an RPC is about to begin, and nothing is made for it yet.
func (s *sources) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if err := checkMethod(info.FullMethodName); err != nil { // before a message is read, which is counted for none of these
		return ctx, err
	}
	delete(info.Header, "client-api-version") // etcd would keep each value for good, as a label of its metrics
	conn, isTracked := ctx.Value(connKey{}).(*trackedConn)
	if units := unitsOf(info.FullMethodName); isTracked && units > 0 {
		return ctx, s.take(conn, units)
	}
	return ctx, nil
}

// take notes that a client wants more. If that is too much, the connection that has most of the address is closed: another program of
// the same host keeps its own.
func (s *sources) take(conn *trackedConn, units int) error {
	s.mu.Lock()
	if conn.gone {
		s.mu.Unlock()
		return status.Error(codes.Unavailable, "the connection is closed")
	}
	of := s.of(conn.from)
	of.units += units
	of.conns[conn] += units
	if of.units <= s.max {
		s.mu.Unlock()
		return nil
	}
	victim, lives := conn, 0
	for c, n := range of.conns {
		if c.gone {
			continue
		}
		if lives += n; n > of.conns[victim] {
			victim = c
		}
	}
	if lives <= s.max && of.conns[conn] <= s.max/8 { // the RPCs of a connection that is closed have not ended yet
		of.units -= units
		of.conns[conn] -= units
		s.mu.Unlock()
		return status.Error(codes.Unavailable, "refused: too many requests at once")
	}
	if victim == conn {
		of.units -= units
		of.conns[conn] -= units
	}
	s.mu.Unlock()
	_ = victim.Close() // its error would be about a connection that is dead
	if s.refuse != nil {
		s.refuse("too many requests at once", conn.from.String(), nil)
	}
	if victim == conn {
		return status.Error(codes.ResourceExhausted, "refused: too many requests at once")
	}
	return nil
}

// unitsOf returns what an RPC counts for; 0: it is refused in any case.
func unitsOf(method string) int {
	switch {
	case !isAllowed(method):
		return 0
	case method == "/etcdserverpb.Watch/Watch":
		return unitsOfWatch
	}
	return 1
}

// of returns the source of an address. It is called with mu held.
func (s *sources) of(from netip.Addr) *source {
	of := s.all[from]
	if of == nil {
		of = &source{conns: map[*trackedConn]int{}, sending: semaphore.NewWeighted(watchSending), lagging: semaphore.NewWeighted(maxHistory)}
		s.all[from] = of
	}
	return of
}

// end notes that an RPC has ended.
func (s *sources) end(conn *trackedConn, units int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.all[conn.from]; of != nil && of.conns[conn] > units {
		of.units -= units
		of.conns[conn] -= units
	} else {
		s.drop(conn)
	}
}

// forget notes that a connection has ended. Its RPCs count until they have: their memory is not free before. One that gRPC has not begun
// never ends.
func (s *sources) forget(conn *trackedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn.gone {
		return
	}
	conn.gone = true
	if of := s.all[conn.from]; of == nil || of.conns[conn] == 0 {
		s.drop(conn)
		return
	}
	time.AfterFunc(endPatience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drop(conn)
	})
}

// endPatience is longer than the RPCs of a closed connection take to end.
const endPatience = 5 * time.Second

// drop is called with mu held.
func (s *sources) drop(conn *trackedConn) {
	of := s.all[conn.from]
	if of == nil {
		return
	}
	of.units -= of.conns[conn]
	if delete(of.conns, conn); len(of.conns) == 0 {
		delete(s.all, conn.from)
	}
}

// find returns the source of a connection; nil if that has ended.
func (s *sources) find(conn *trackedConn) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[conn.from]
}

// limitedStream bounds how many bytes wait for a client in a stream. A message for an address waits until there is room for it.
type limitedStream struct {
	grpc.ServerStream
	answers *answers

	mu      sync.Mutex // of all below: etcd still receives when the stream has ended
	watches int        // that were begun
	ended   bool
	catches int   // how often it has room to catch up, or waits for that
	at      int64 // the revision of the message that is being sent; 0: no message is being sent
}

// limit returns a stream with bounds. Its end must be called.
func (a *answers) limit(s grpc.ServerStream) *limitedStream {
	l := &limitedStream{ServerStream: s, answers: a}
	a.sources.mu.Lock()
	defer a.sources.mu.Unlock()
	a.sources.streams[l] = struct{}{}
	return l
}

// RecvMsg implements grpc.ServerStream.
func (l *limitedStream) RecvMsg(m any) error {
	if err := l.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	r, isWatch := m.(*pb.WatchRequest)
	conn, isTracked := l.Context().Value(connKey{}).(*trackedConn)
	if !isWatch || !isTracked || r.GetCreateRequest() == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended { // nobody would give back what it takes
		return net.ErrClosed
	}
	err := l.answers.sources.take(conn, 1)
	if err == nil {
		l.watches++
	}
	return err
}

// end is called when the stream has ended.
func (l *limitedStream) end() {
	l.answers.sources.mu.Lock()
	delete(l.answers.sources.streams, l)
	l.answers.sources.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended = true; l.watches == 0 {
		return
	}
	if conn, isTracked := l.Context().Value(connKey{}).(*trackedConn); isTracked {
		l.answers.sources.end(conn, l.watches)
	}
}

// SendMsg implements grpc.ServerStream.
func (l *limitedStream) SendMsg(m any) error {
	ctx := l.Context()
	conn, isTracked := ctx.Value(connKey{}).(*trackedConn)
	message, isMessage := m.(proto.Message)
	if !isTracked || !isMessage {
		return l.ServerStream.SendMsg(m)
	}
	size := int64(proto.Size(message))
	if size <= fewUnsent/16 { // a notice that something has begun or ended, or a few changes
		return l.ServerStream.SendMsg(m)
	}
	of := l.answers.sources.find(conn)
	if of == nil {
		return net.ErrClosed
	}
	room := min(size, watchSending)
	if err := of.sending.Acquire(ctx, room); err != nil {
		return context.Cause(ctx)
	}
	// gRPC itself waits until the client has taken most of what there is in the stream.
	slow := time.AfterFunc(l.answers.patience+time.Duration(size)*time.Second/takeRate, func() { _ = conn.Close() })
	err := l.ServerStream.SendMsg(m)
	conn.unsent.atRest(func() { slow.Stop(); afterLoss(conn, func() { of.sending.Release(room) }) })
	return err
}
