package etcdrpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// balancerName is that of the policy by which gRPC spreads calls over several endpoints.
const balancerName = "overlayd_etcd_members"

func init() { balancer.Register(builder{}) }

// builder implements balancer.Builder.
type builder struct{}

// Name implements balancer.Builder.
func (builder) Name() string { return balancerName }

// Build implements balancer.Builder.
func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	ctx, cancel := context.WithCancel(context.Background())
	return &spread{cc: cc, of: opts.DialCreds.(*connTracker).endpoints, ctx: ctx, cancel: cancel}
}

// endpoints is what a spread has to know of its Client.
type endpoints struct {
	names   []string // as in Config
	members *members

	username string
	password *password
}

// spread uses in turn the endpoints that are of one cluster and can do what is asked. Each new connection is asked for that before it is
// used: an endpoint becomes one of another cluster by a new start of its etcd alone.
type spread struct {
	cc     balancer.ClientConn
	of     *endpoints
	ctx    context.Context // ends with the spread, and so do its goroutines
	cancel context.CancelFunc

	mu   sync.Mutex
	ends []*end
}

// end is one endpoint.
type end struct {
	name  string
	sub   balancer.SubConn
	state connectivity.State
	tried bool  // a connection has failed, and none was made since
	err   error // of the last one that failed
	nth   int   // connection
	asked bool  // the answer of this connection is there
	found found // that answer
}

// isPending reports whether the answer of e may come soon.
func (e *end) isPending() bool {
	if e.state == connectivity.Ready {
		return !e.asked
	}
	return !e.tried
}

// UpdateClientConnState implements balancer.Balancer. The endpoints of a Client stay the same.
func (s *spread) UpdateClientConnState(now balancer.ClientConnState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends != nil {
		return nil
	}
	for i, endpoint := range now.ResolverState.Endpoints {
		e := &end{name: s.of.names[i]}
		//lint:ignore SA1019 it has one address, and only what does not work with several is deprecated
		sub, err := s.cc.NewSubConn([]resolver.Address{endpoint.Addresses[0]}, balancer.NewSubConnOptions{
			StateListener: func(now balancer.SubConnState) { s.changed(e, now) }})
		if err != nil {
			return err
		}
		e.sub = sub
		s.ends = append(s.ends, e)
		sub.Connect()
	}
	s.update()
	return nil
}

// ResolverError implements balancer.Balancer. There is nothing to resolve.
func (s *spread) ResolverError(error) {}

// UpdateSubConnState implements balancer.Balancer, which uses a StateListener instead.
func (s *spread) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// Close implements balancer.Balancer.
func (s *spread) Close() { s.cancel() }

// ExitIdle implements balancer.Balancer. No end stays idle.
func (s *spread) ExitIdle() {}

func (s *spread) changed(e *end, now balancer.SubConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.state, e.asked, e.found = now.ConnectivityState, false, found{}
	e.nth++
	switch now.ConnectivityState {
	case connectivity.Idle:
		e.sub.Connect()
	case connectivity.TransientFailure:
		e.tried, e.err = true, now.ConnectionError
	case connectivity.Ready:
		e.tried = false
		go s.ask(e, e.nth)
	}
	s.update()
}

// How long an endpoint that cannot be used is left alone, at first and at last. For some it checks a password each time.
const (
	askAgain  = 2 * time.Second
	askRarely = time.Minute
)

// ask asks the nth connection until it says its cluster and can be used, or is gone.
func (s *spread) ask(e *end, nth int) {
	again := pace.Backoff{Low: askAgain, High: askRarely}
	for {
		conn, release := e.sub.GetOrBuildProducer(onSub{})
		f := s.of.ask(s.ctx, conn.(grpc.ClientConnInterface))
		release()
		if s.ctx.Err() != nil || s.answered(e, nth, f) {
			return
		}
		if f.err != nil && fixOf(f.err) == "" { // it may answer at any time
			again.Reset()
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(again.Next()):
		}
	}
}

// answered takes over what the nth connection has answered. done is true if that need not be asked again: one that has not said its cluster, as
// it refuses the user, may be of another one.
func (s *spread) answered(e *end, nth int, f found) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.nth != nth {
		return true
	}
	e.asked, e.found = true, f
	cluster := s.update()
	return f.cluster != 0 && f.why(cluster) == nil
}

// update tells gRPC what to use, and returns the cluster that is used. The caller has the lock.
func (s *spread) update() (cluster uint64) {
	var answers []found
	pending := false
	for _, e := range s.ends {
		if e.state == connectivity.Ready && e.asked {
			answers = append(answers, e.found)
		}
		pending = pending || e.isPending()
	}
	cluster, chosen := s.of.members.choose(time.Now(), answers, len(s.ends), !pending)
	if !chosen {
		time.AfterFunc(choiceWaits, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.ctx.Err() == nil {
				s.update()
			}
		})
		pending = true
	}
	subs, reasons := s.usable(cluster, chosen)
	switch {
	case len(subs) > 0:
		p := &inTurn{subs: subs}
		p.next.Store(rand.Uint32()) // else all hosts would begin with the same one
		s.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: p})
	case pending:
		s.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)})
	default:
		err := errors.New(strings.Join(reasons, "; "))
		s.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)})
	}
	return cluster
}

// usable returns the connections that can be used, and why others cannot. The caller has the lock.
func (s *spread) usable(cluster uint64, chosen bool) (subs []balancer.SubConn, reasons []string) {
	unused := map[string]error{}
	var pending []string
	for _, e := range s.ends {
		if e.isPending() {
			pending = append(pending, e.name)
		}
		why := e.found.why(cluster)
		switch {
		case e.state != connectivity.Ready && e.err != nil:
			reasons = append(reasons, e.err.Error())
		case e.state != connectivity.Ready || !e.asked || !chosen:
		case why != nil:
			unused[e.name] = why
			reasons = append(reasons, fmt.Sprintf("%s: %v", e.name, why))
		default:
			subs = append(subs, e.sub)
		}
	}
	s.of.members.note(unused, pending)
	return subs, reasons
}

// inTurn is a balancer.Picker that takes one after the other.
type inTurn struct {
	subs []balancer.SubConn
	next atomic.Uint32
}

// Pick implements balancer.Picker.
func (p *inTurn) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{SubConn: p.subs[int(p.next.Add(1)%uint32(len(p.subs)))]}, nil
}

// onSub is a balancer.ProducerBuilder of what makes calls on one connection.
type onSub struct{}

// Build implements balancer.ProducerBuilder.
func (onSub) Build(conn any) (balancer.Producer, func()) { return conn, func() {} }

// ask asks the etcd of a connection what it is. One that does not answer cannot be used; one that does not tell can.
func (of *endpoints) ask(ctx context.Context, conn grpc.ClientConnInterface) found {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	f := found{cluster: status.GetHeader().GetClusterId()}
	if needsToken(err) && of.username != "" { // etcd 3.7; a token that there is may be of another cluster
		var r *pb.AuthenticateResponse
		r, err = pb.NewAuthClient(conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: of.username, Password: of.password.current(ctx)})
		f.cluster = r.GetHeader().GetClusterId()
	}
	switch {
	case status.GetIsLearner() || isLearner(err):
		f.err = errLearner
	case code(err) == codes.Unavailable || code(err) == codes.DeadlineExceeded:
		f.err = err
	}
	return f
}
