package etcdrpc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/dataplane/pace"
)

// password is that of a Config, read again whenever the client asks for a token: one that was changed is used without a restart.
type password struct {
	read func() (string, error) // nil: it does not change
	log  *slog.Logger

	mu      sync.Mutex
	last    string
	notices pace.Notices // that it cannot be read
}

// current returns the password as it is now. If it cannot be read, because somebody is just writing it, it is the last one.
func (p *password) current(ctx context.Context) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read == nil {
		return p.last
	}
	now, err := p.read()
	switch {
	case err != nil:
		if due, _ := p.notices.Due(time.Now(), pace.Notice{Text: err.Error()}); len(due) > 0 {
			p.log.WarnContext(ctx, "etcd password cannot be read again: going on with the one that was read before", "err", err)
		}
		return p.last
	case now != p.last:
		p.last = now
		p.log.InfoContext(ctx, "etcd password has changed: authenticating with the new one")
	}
	return p.last
}

// renew gives a request for a token the password as it is now: clientv3 has only that with which it was made.
func (p *password) renew(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := req.(*pb.AuthenticateRequest); ok {
		req = &pb.AuthenticateRequest{Name: r.Name, Password: p.current(ctx)}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}
