package embedded

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

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
	served := newAnswers(takePatience, nil)
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
	l := served.limit(endedStream{ctx: context.WithValue(t.Context(), connKey{}, conn)})
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
	if len(s.streams) > 0 {
		t.Errorf("%d streams are remembered", len(s.streams))
	}
}

// TestSlowStreams: the connection of a stream is closed if its client has yet to take what was before the history.
func TestSlowStreams(t *testing.T) {
	t.Parallel()
	at := func(revision int64) *pb.WatchResponse {
		return &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: revision}}
	}
	for _, c := range []struct {
		name   string
		sends  any
		ended  bool
		closed bool
	}{
		{"a message of before", at(9), false, true},
		{"a message of the oldest revision", at(10), false, false},
		{"none", nil, false, false},
		{"no watch", new(pb.LeaseKeepAliveResponse), false, false},
		{"an ended stream", at(9), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			served, tracker := newAnswers(takePatience, nil), newConnTracker()
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			closed := false
			tracker.ended = func(*trackedConn) { closed = true }
			conn := &trackedConn{Conn: a, tracker: tracker, address: "192.0.2.1", from: netip.MustParseAddr("192.0.2.1")}
			l := served.limit(endedStream{ctx: context.WithValue(t.Context(), connKey{}, conn)})
			if l.sends(c.sends); c.ended {
				l.end()
			}
			if served.sources.dropBefore(10); closed != c.closed {
				t.Errorf("closed: %v, want %v", closed, c.closed)
			}
		})
	}
}

// TestStreamsCatchUp: the streams of one address wait until there is room for what they lag behind, and one that has room does not.
func TestStreamsCatchUp(t *testing.T) {
	t.Parallel()
	const most = maxHistory
	for _, c := range []struct {
		name          string
		before, bytes int64 // of a watch, and of its stream or another after that
		other, waits  bool
	}{
		{"a stream that has room", most, most, false, false},
		{"another that lags far behind", most, most, true, true},
		{"another that lags a little behind", most, most / 16, true, false},
		{"another for which there is room", most / 2, most / 2, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			served := newAnswers(takePatience, nil)
			conn := &trackedConn{from: netip.MustParseAddr("192.0.2.1")}
			if err := served.sources.take(conn, 1); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), connKey{}, conn), 10*time.Second)
			defer cancel()
			l := served.limit(endedStream{ctx: ctx})
			if err := l.catchUp(c.before); err != nil {
				t.Fatal(err)
			}
			if c.other {
				l = served.limit(endedStream{ctx: ctx})
			}
			if c.waits {
				cancel()
			}
			if err := l.keepUp(c.bytes); (err != nil) != c.waits {
				t.Errorf("%v, want that it waits: %v", err, c.waits)
			}
		})
	}
}
