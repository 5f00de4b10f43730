package etcdrpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control"
)

// silent is an etcd that says its version, and to all else nothing.
type silent struct {
	pb.UnimplementedMaintenanceServer
}

// Status implements pb.MaintenanceServer.
func (silent) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{}, Version: "3.5.0"}, nil
}

// TestKeepAliveUnanswered: a server that says nothing to a request to keep a lease alive has not answered, nor is it waited for longer than for another call.
func TestKeepAliveUnanswered(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	pb.RegisterMaintenanceServer(s, silent{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	log := slog.New(slog.DiscardHandler)
	c, err := Open(t.Context(), Config{Endpoints: []string{"http://" + l.Addr().String()}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var health control.StoreHealth
	caller := c.Caller("/x", time.Hour, &health, log)
	if _, err := caller.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	health.Failed(errors.New("down"))
	before, began := health.Status(), time.Now()
	if _, err := caller.Refresh(t.Context(), 1); err == nil {
		t.Error("the lease is kept alive")
	}
	if after := health.Status(); after.Connected || !after.LastAnswer.Equal(before.LastAnswer) || !after.Since.Equal(before.Since) {
		t.Errorf("was %+v, is %+v", before, after)
	}
	if took := time.Since(began); took > rpcTimeout+time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestUnansweredData: the kernel ends a connection to etcd if nobody acknowledges what was sent.
func TestUnansweredData(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := patience{log: slog.New(slog.DiscardHandler)}
	conn, err := p.dial(t.Context(), l.Addr().String(), func(context.Context) (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*awaited).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if cerr != nil || err != nil || got != int(keepAliveTimeout.Milliseconds()) {
		t.Errorf("%d ms, %v, %v", got, cerr, err)
	}
}
