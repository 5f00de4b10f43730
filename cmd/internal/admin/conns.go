package admin

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/claim"
)

// maxConns bounds the connections: a person, scripts and a few captures.
const maxConns = 32

// conn is a connection, and who has opened it.
type conn struct {
	*net.UnixConn
	who   Caller
	conns *conns
	busy  bool // a request of it is in work; of conns.mu
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.conns.forget(c)
	return c.UnixConn.Close()
}

// Caller is who has opened a connection, as the kernel says.
type Caller struct {
	UID uint32
	PID int32 // 0: in a pid namespace that this process does not see
}

type callerKey struct{}

// CallerOf returns who asks.
func CallerOf(r *http.Request) Caller {
	if c, ok := r.Context().Value(callerKey{}).(*conn); ok {
		return c.who
	}
	return Caller{UID: nobody}
}

const nobody = 65534

// conns are the open connections.
type conns struct {
	mu      sync.Mutex
	open    []*conn // the oldest first
	dropped uint64  // to make room
}

// listener admits connections.
type listener struct {
	*net.UnixListener
	conns *conns
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if admitted := l.conns.admit(c); admitted != nil {
			return admitted, nil
		}
	}
}

// admit returns a connection as the server is to use it; nil if there is no room, and it was closed.
func (t *conns) admit(c *net.UnixConn) *conn {
	cred, err := claim.Peer(c)
	if err != nil {
		c.Close()
		return nil
	}
	k := &conn{UnixConn: c, who: Caller{cred.Uid, cred.Pid}, conns: t}
	t.mu.Lock()
	var victim *conn
	if len(t.open) >= maxConns {
		t.dropped++
		victim = t.victim(k)
	}
	if victim != k {
		t.open = append(t.open, k)
	}
	t.mu.Unlock()
	if victim != nil {
		victim.Close()
	}
	if victim == k {
		return nil
	}
	return k
}

// victim returns the connection that makes room for k: the oldest without a request in work of the user that has most, k
// included. If all of these have one, the oldest goes if it is another user's, and else k. The caller holds mu.
func (t *conns) victim(k *conn) *conn {
	most, count := k.who.UID, map[uint32]int{k.who.UID: 1}
	for _, c := range t.open {
		count[c.who.UID]++
	}
	for _, c := range t.open { // root makes room for nobody who has as many
		if n := count[c.who.UID]; n > count[most] || n == count[most] && most == 0 {
			most = c.who.UID
		}
	}
	theirs := func(c *conn) bool { return c.who.UID == most }
	if i := slices.IndexFunc(t.open, func(c *conn) bool { return theirs(c) && !c.busy }); i >= 0 {
		return t.open[i]
	}
	if most == k.who.UID {
		return k
	}
	return t.open[slices.IndexFunc(t.open, theirs)]
}

func (t *conns) forget(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.open, c); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
}

// work notes that a request of c is in work, until done is called.
func (t *conns) work(c *conn) (done func()) {
	set := func(busy bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		c.busy = busy
	}
	set(true)
	return func() { set(false) }
}

// closeIdle closes the connections without a request in work.
func (t *conns) closeIdle() {
	t.mu.Lock()
	idle := slices.DeleteFunc(slices.Clone(t.open), func(c *conn) bool { return c.busy })
	t.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

func (t *conns) stats() (dropped uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

// withConn is http.Server.ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}
