package embedded

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// TestSources: of an address that asks for too much the connection with most is closed, what is under way counts until it has ended, and
// other addresses are left alone.
func TestSources(t *testing.T) {
	t.Parallel()
	s := &sources{max: 80, all: map[netip.Addr]*source{}}
	tracker := newConnTracker()
	tracker.ended = s.forget
	made := func(from string) *trackedConn {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		return &trackedConn{Conn: a, tracker: tracker, address: from, from: netip.MustParseAddr(from)}
	}
	greedy, quiet, other := made("192.0.2.1"), made("192.0.2.1"), made("192.0.2.2")
	for _, c := range []struct {
		conn  *trackedConn
		units int
		ok    bool
		gone  bool // greedy is closed
	}{
		{greedy, 72, true, false},
		{other, 80, true, false},
		{quiet, 8, true, false},
		{quiet, 1, true, true},
		{quiet, 1, false, true}, // those of greedy have not ended
		{greedy, 1, false, true},
	} {
		err := s.take(c.conn, c.units)
		if (err == nil) != c.ok || greedy.gone != c.gone || quiet.gone || other.gone {
			t.Fatalf("%d units: %v; closed: %v, %v, %v", c.units, err, greedy.gone, quiet.gone, other.gone)
		}
	}
	s.end(greedy, 72)
	if err := s.take(quiet, 1); err != nil {
		t.Errorf("after the end of the others: %v", err)
	}
	s.end(quiet, 10)
	s.end(other, 80)
	if len(s.all) > 0 {
		t.Errorf("%d addresses are remembered", len(s.all))
	}
}

// endedStream is a stream from which etcd still receives after it has ended.
type endedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s endedStream) Context() context.Context { return s.ctx }

func (s endedStream) RecvMsg(m any) error {
	m.(*pb.WatchRequest).RequestUnion = &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{}}
	return nil
}

// TestWatchAfterTheEnd: a watch that is begun while its stream ends is counted before that, and given back, or refused.
func TestWatchAfterTheEnd(t *testing.T) {
	t.Parallel()
	served := &answers{sources: sources{max: 80, all: map[netip.Addr]*source{}}}
	s := &served.sources
	tracker := newConnTracker()
	tracker.ended = s.forget
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	conn := &trackedConn{Conn: a, tracker: tracker, address: "192.0.2.1", from: netip.MustParseAddr("192.0.2.1")}
	if err := s.take(conn, 1); err != nil { // the connection has another RPC
		t.Fatal(err)
	}
	l := &limitedStream{ServerStream: endedStream{ctx: context.WithValue(t.Context(), connKey{}, conn)}, answers: served}
	if err := l.RecvMsg(new(pb.WatchRequest)); err != nil || s.all[conn.from].units != 2 {
		t.Fatalf("a watch: %v, %d units, want 2", err, s.all[conn.from].units)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { _ = l.RecvMsg(new(pb.WatchRequest)) })
	}
	l.end()
	group.Wait()
	if err := l.RecvMsg(new(pb.WatchRequest)); err == nil || s.all[conn.from].units != 1 {
		t.Errorf("after the end: %v, %d units, want 1", err, s.all[conn.from].units)
	}
}
