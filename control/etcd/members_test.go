package etcd_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control"
)

// TestTwoClusters: of endpoints that lead to two clusters those of one are used, whatever answers when; a cluster that has taken the
// place of another at most of them is taken up.
func TestTwoClusters(t *testing.T) {
	for name, order := range map[string]string{"first": "oss", "between": "sos", "last": "sso"} { // other, same
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, other := newProcess(t, "", 1), newProcess(t, "", 1) // with other IDs
			c.SetConfig(t, []byte(config))
			other.SetConfig(t, []byte(config))
			var log syncBuffer
			c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			var same []*proxy
			c.cfg.Endpoints = nil
			for _, o := range order {
				p := other.proxies[0]
				if o == 's' {
					p = newProxy(t, c.proxies[0].target)
					same = append(same, p)
				}
				c.cfg.Endpoints = append(c.cfg.Endpoints, "http://"+p.addr())
			}
			s := c.open(t)
			l := acquire(t, s, 1)
			updates := watch(t, s)
			follow(t, c.cluster, updates, table{})
			for range 5 {
				eventually(t, "the lease is renewed", func() bool { // the connection may have been cut while it was used
					renewed, err := s.Renew(t.Context(), l)
					if err == nil {
						l = renewed
					}
					return err == nil
				})
				same[0].cut()
			}
			if text := log.String(); strings.Count(text, "an endpoint of etcd is not used") != 1 || !strings.Contains(text, "endpoint=http://"+other.proxies[0].addr()) {
				t.Errorf("log:\n%s", text)
			}
			if unused := s.Status().Unused; len(unused) != 1 || unused[0].Endpoint != "http://"+other.proxies[0].addr() || unused[0].Fix == "" || unused[0].Since.IsZero() {
				t.Errorf("status: %+v", unused)
			}
			for _, p := range same {
				p.turn("")
			}
			eventually(t, "an error that says what answers", func() bool {
				_, err := s.Renew(t.Context(), l)
				return err != nil && strings.Contains(err.Error(), "of another cluster") && control.Reason(err) == control.ReasonUnreachable
			})
			if keys := other.Keys(t); len(keys) != 0 {
				t.Errorf("the other cluster has %v", keys)
			}
			same[1].turn(other.proxies[0].target)
			eventually(t, "the node's lease in the cluster that took its place", func() bool {
				renewed, err := s.Renew(t.Context(), l)
				return err == nil && renewed.Key() == l.Key()
			})
			if _, ok := other.GetRaw(t, l.Key()); !ok {
				t.Error("the lease is not there")
			}
			eventually(t, "a list of the other cluster", func() bool { return receive(t, updates).Older })
		})
	}
}

// teller answers what it is asked of itself.
type teller struct {
	pb.UnimplementedMaintenanceServer
	status func() (*pb.StatusResponse, error)
}

// Status implements pb.MaintenanceServer.
func (s teller) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return s.status()
}

// newTeller returns the endpoint of one that answers all else with that error.
func newTeller(t *testing.T, refusal error, status func() (*pb.StatusResponse, error)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return refusal }))
	pb.RegisterMaintenanceServer(s, teller{status: status})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return "http://" + l.Addr().String()
}

// TestTellsLate: an endpoint that has not said of which cluster it is, since it refused the user, is asked again until it does.
func TestTellsLate(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var asked atomic.Int32
	endpoint := newTeller(t, rpctypes.ErrGRPCPermissionDenied, func() (*pb.StatusResponse, error) {
		if asked.Add(1) == 1 {
			return nil, rpctypes.ErrGRPCPermissionDenied
		}
		return &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 1}, Version: "3.7.0"}, nil
	})
	c.cfg.Endpoints = append(c.cfg.Endpoints, endpoint)
	s := c.open(t)
	eventually(t, "its cluster is known", func() bool {
		_, _ = s.Network(t.Context()) // dials
		unused := s.Status().Unused
		return len(unused) == 1 && unused[0].Endpoint == endpoint && strings.Contains(unused[0].Err, "of another cluster")
	})
}

// TestLearner: an endpoint of a learner is not used beside others, and is named.
func TestLearner(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	endpoint := newTeller(t, rpctypes.ErrGRPCNotSupportedForLearner, func() (*pb.StatusResponse, error) {
		return &pb.StatusResponse{Header: &pb.ResponseHeader{}, Version: "3.4.23", IsLearner: true}, nil
	})
	own := c.cfg.Endpoints[0]
	for _, c.cfg.Endpoints = range [][]string{{endpoint, own}, {own, endpoint}} {
		s := c.open(t)
		for range 6 {
			if _, err := s.Network(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if text := log.String(); !strings.Contains(text, "an endpoint of etcd is not used") || !strings.Contains(text, "endpoint="+endpoint) || !strings.Contains(text, "member promote") {
		t.Errorf("log:\n%s", text)
	}
	c.cfg.Endpoints = []string{endpoint}
	if _, err := c.open(t).Network(t.Context()); err == nil || !strings.Contains(err.Error(), "member promote") {
		t.Errorf("a learner alone: %v", err)
	}
}
