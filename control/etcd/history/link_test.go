package history_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// gate is open or shut. The zero value is open.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when the gate opens; nil: it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// pass waits until the gate is open.
func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
		g.pass()
	}
}

// tamper changes what goes through a link; either may be nil. They are called in the order of
// each call, but for several calls at once.
type tamper struct {
	request func(method string, message []byte) []byte
	answer  func(method string, request, message []byte) []byte
}

// link is the way of one process to etcd: a gRPC server on a unix socket that passes every call on.
// While its gate is shut nothing comes through in either direction, and all of it does afterwards,
// as with TCP: even a request that the process has given up by then.
type link struct {
	gate
	outage *gate // shut: etcd does not run
	etcd   grpc.ClientConnInterface
	server *grpc.Server
	tamper tamper
	wrote  func(w write) // told of every answer to a call that changes etcd

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	epoch int // how often the connections were cut
	gone  bool
}

// newLink listens on path.
func newLink(path string, etcd grpc.ClientConnInterface, change tamper, outage *gate, wrote func(write)) (*link, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	l := &link{outage: outage, etcd: etcd, tamper: change, wrote: wrote, conns: map[net.Conn]struct{}{}}
	l.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(l.handle),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	go l.server.Serve(tracked{listener, l}) // ends with stop
	return l, nil
}

// cut ends every connection: what was held is lost, and so is the answer to what has gone through.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

// stop ends the link for good, as the death of its process does.
func (l *link) stop() {
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	l.cut()
	l.open()
	l.server.Stop()
}

// held waits until messages come through.
func (l *link) held() {
	l.pass()
	l.outage.pass()
}

// current reports whether the connections of an epoch are still there.
func (l *link) current(epoch int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch == epoch
}

// tracked is a listener whose connections the link knows.
type tracked struct {
	net.Listener
	link *link
}

// Accept implements net.Listener.
func (t tracked) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t.link.mu.Lock()
	defer t.link.mu.Unlock()
	if t.link.gone {
		c.Close()
	}
	t.link.conns[c] = struct{}{}
	return c, nil
}

// message is one message as its bytes.
type message struct{ bytes []byte }

// rawCodec passes messages as they are.
type rawCodec struct{}

// Name implements encoding.Codec: that of what the messages are.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (rawCodec) Marshal(v any) ([]byte, error) { return v.(*message).bytes, nil }

// Unmarshal implements encoding.Codec.
func (rawCodec) Unmarshal(b []byte, v any) error {
	v.(*message).bytes = append([]byte(nil), b...)
	return nil
}

// handle passes one call on. It reaches etcd even if the process has given it up; a stream ends when
// the process ends it.
func (l *link) handle(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	l.mu.Lock()
	epoch := l.epoch
	l.mu.Unlock()
	md, _ := metadata.FromIncomingContext(down.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(context.Background(), md))
	defer cancel()
	up, err := l.etcd.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	c := &call{link: l, method: method, epoch: epoch, up: up, down: down}
	go func() { // ends with the call of the process
		if c.requests() != nil {
			cancel()
		}
	}()
	return c.answers()
}

// call is one call that a link passes on.
type call struct {
	link   *link
	method string
	epoch  int
	up     grpc.ClientStream
	down   grpc.ServerStream

	mu   sync.Mutex
	last []byte // request
}

var errCut = status.Error(codes.Unavailable, "the connection was cut")

// requests passes the requests on until there are no more.
func (c *call) requests() error {
	for {
		var m message
		err := c.down.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return c.up.CloseSend()
		}
		if err != nil {
			return err
		}
		c.link.held()
		if !c.link.current(c.epoch) {
			return errCut
		}
		c.mu.Lock()
		if c.link.tamper.request != nil {
			m.bytes = c.link.tamper.request(c.method, m.bytes)
		}
		c.last = m.bytes
		c.mu.Unlock()
		if err := c.up.SendMsg(&m); err != nil {
			return err
		}
	}
}

// answers passes the answers on until etcd has ended the call.
func (c *call) answers() error {
	for {
		var m message
		err := c.up.RecvMsg(&m)
		if err == nil && isWrite(c.method) {
			c.mu.Lock()
			c.link.wrote(write{c.method, c.last, m.bytes})
			c.mu.Unlock()
		}
		c.link.held()
		switch {
		case !c.link.current(c.epoch):
			return errCut
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if c.link.tamper.answer != nil {
			c.mu.Lock()
			last := c.last
			c.mu.Unlock()
			m.bytes = c.link.tamper.answer(c.method, last, m.bytes)
		}
		if err := c.down.SendMsg(&m); err != nil {
			return err
		}
	}
}
