package embedded

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/control/conns"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	// greeting is how long a client may take from the connection to its first bytes, TLS included.
	greeting = 5 * time.Second
	// recheck is how often the certificates of connections are looked at again.
	recheck = time.Second

	maxGreeting = 256  // connections that have not sent their first bytes
	maxGuests   = 8192 // connections that have
	maxFromOne  = 512  // of those, from one address
)

// front is the listener that other hosts reach. It stands before etcd, which would wait for ever for a client's first
// bytes, and serves its command line and metrics: here a client is identified, counted, and given to gRPC or to the
// few paths of HTTP.
type front struct {
	address  string
	listener net.Listener                // nil: another process has the port; then under mu
	opened   func()                      // called when it is no longer nil
	tls      func() (*tls.Config, error) // for a handshake now; nil: plain
	log      *slog.Logger
	own      bool // it is plain at a loopback address: for root and the user of this process alone

	greeting, again time.Duration

	greeted, guests *crowd
	grpc, http      feed

	ctx  context.Context // ends with close
	stop context.CancelFunc
	wait sync.WaitGroup

	mu      sync.Mutex
	refused uint64
	notices pace.Notices
}

// openFront listens. Nobody is answered before serve.
func openFront(cfg Config, address string, secure func() (*tls.Config, error)) (*front, error) {
	var addr net.Addr
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		addr = l.Addr()
	case errors.Is(err, unix.EADDRINUSE) && cfg.Waits != nil && cfg.Waits(err):
		if addr, err = net.ResolveTCPAddr("tcp", address); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	f := &front{address: address, listener: l, opened: cfg.Opened, tls: secure, log: cfg.Log, greeted: newCrowd(maxGreeting, false), guests: newCrowd(guestsFor(maxGuests), true),
		greeting: cmp.Or(cfg.greeting, greeting), again: cmp.Or(cfg.recheck, recheck)}
	f.guests.each = maxFromOne
	if secure == nil { // else only nodes get as far
		f.guests.farewell = farewell()
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.grpc, f.http = newFeed(f.ctx, addr), newFeed(f.ctx, addr)
	return f, nil
}

// farewell returns the end of a connection in HTTP/2 that says why (RFC 9113, section 6.8).
func farewell() []byte {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	_ = framer.WriteSettings() // a buffer takes all
	_ = framer.WriteGoAway(0, http2.ErrCodeNo, []byte(conns.Crowded))
	return b.Bytes()
}

// guestsFor returns how many connections there may be: half of the files that this process may open, at most n.
func guestsFor(n int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur/2 > uint64(n) {
		return n
	}
	return int(limit.Cur / 2)
}

// serve gives connections to the two servers until close.
func (f *front) serve(g *grpc.Server, h http.Handler) {
	web := &http.Server{Handler: h, ReadHeaderTimeout: greeting, ReadTimeout: greeting, WriteTimeout: greeting, IdleTimeout: greeting, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), Protocols: new(http.Protocols)}
	web.Protocols.SetHTTP1(true)
	f.wait.Go(func() { _ = g.Serve(f.grpc) }) // they end with their listener
	f.wait.Go(func() { _ = web.Serve(f.http) })
	if l := f.listener; l != nil {
		f.wait.Go(func() { f.accept(l) })
	} else {
		f.wait.Go(f.listenLater)
	}
	if f.tls != nil {
		f.wait.Go(f.recheck)
	}
}

// close ends all connections, and serve.
func (f *front) close() {
	f.stop()
	f.mu.Lock()
	if f.listener != nil {
		f.listener.Close()
	}
	f.mu.Unlock()
	f.greeted.close()
	f.guests.close()
	f.wait.Wait()
}

// listenLater listens once the port is free, unless close comes before that.
func (f *front) listenLater() {
	again := pace.Backoff{Low: 100 * time.Millisecond, High: 1500 * time.Millisecond}
	for pace.Sleep(f.ctx, again.Next(), nil) {
		l, err := net.Listen("tcp", f.address)
		if err != nil {
			f.mu.Lock()
			if due, _ := f.notices.Due(time.Now(), pace.Notice{Key: "listen", Text: err.Error()}); len(due) > 0 && !errors.Is(err, unix.EADDRINUSE) {
				f.log.Warn("embedded etcd cannot listen: trying again", "err", err)
			}
			f.mu.Unlock()
			continue
		}
		f.mu.Lock()
		if f.ctx.Err() != nil { // close saw no listener
			f.mu.Unlock()
			l.Close()
			return
		}
		f.listener = l
		f.mu.Unlock()
		if f.opened != nil {
			f.opened()
		}
		f.accept(l)
		return
	}
}

func (f *front) accept(l net.Listener) {
	again := pace.Backoff{Low: 5 * time.Millisecond, High: time.Second}
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too many open files
			if f.refuse("it cannot be accepted", "", err); !pace.Sleep(f.ctx, again.Next(), nil) {
				return
			}
			continue
		}
		again.Reset()
		if f.own && !f.isOwn(c) {
			_ = c.Close() // an error would be about a connection that is dead
			continue
		}
		g, dropped := f.greeted.admit(c)
		if dropped {
			f.refuse("too many connections have sent nothing yet", "", nil)
		}
		if g != nil {
			f.wait.Go(func() { f.greet(g) })
		}
	}
}

// isOwn reports whether a client is of root, or of the user of this process. Its address does not matter: every user can connect to a
// loopback address from any address of the host.
func (f *front) isOwn(c net.Conn) bool {
	uid, err := conns.UserOf(c.(*net.TCPConn))
	switch {
	case errors.Is(err, net.ErrClosed): // as by a port scan
		return false
	case err != nil:
		f.refuse("its user cannot be found", c.RemoteAddr().String(), err)
		return false
	case uid != 0 && int(uid) != os.Geteuid():
		f.refuse("it is of another user, and http:// at a loopback address is for root and the user of overlayd alone", fmt.Sprintf("uid %d", uid), nil)
		return false
	}
	return true
}

// greet finds out who a client is and what it speaks.
func (f *front) greet(g *guest) {
	defer f.greeted.forget(g)
	if err := g.SetDeadline(time.Now().Add(f.greeting)); err != nil {
		g.Close()
		return
	}
	conn, leaf, err := f.identify(g)
	if err != nil {
		g.Close()
		f.refuseBroken(g, "it has no certificate of this cluster", err)
		return
	}
	first := bufio.NewReaderSize(conn, 64)
	begin, err := first.Peek(3)
	if err != nil || g.SetDeadline(time.Time{}) != nil {
		g.Close()
		f.refuseBroken(g, "it has sent nothing in time", err)
		return
	}
	to := f.http
	if string(begin) == "PRI" { // of the preface of HTTP/2 (RFC 9113, section 3.4)
		to = f.grpc
	}
	in, dropped := f.guests.admit(g.raw)
	if dropped {
		f.refuse("too many connections", g.from.String(), nil)
	}
	if in == nil {
		return
	}
	in.Conn = readAhead{conn, first}
	in.leaf.Store(leaf)
	if !to.give(in) {
		in.Close()
	}
}

// identify does the handshake of TLS, and returns the client's certificate.
func (f *front) identify(g *guest) (net.Conn, *x509.Certificate, error) {
	if f.tls == nil {
		return g.Conn, nil, nil
	}
	config, err := f.tls()
	if err != nil {
		return nil, nil, err
	}
	secured := tls.Server(g.Conn, config)
	if err := secured.HandshakeContext(f.ctx); err != nil {
		return nil, nil, err
	}
	return secured, secured.ConnectionState().PeerCertificates[0], nil
}

// recheck closes the connections whose certificate is no longer taken.
func (f *front) recheck() {
	var last *tls.Config
	for pace.Sleep(f.ctx, f.again, nil) {
		config, err := f.tls()
		if err != nil {
			continue // it is logged where it is read
		}
		f.closeStale(config, last != config)
		last = config
	}
}

// maxNamed bounds the names in a line of the log.
const maxNamed = 50

// closeStale closes the connections whose certificate has ended, or is of no authority of config if that has changed.
func (f *front) closeStale(config *tls.Config, changed bool) {
	var names []string
	for _, g := range f.guests.all() {
		leaf := g.leaf.Load()
		if leaf == nil || !changed && !time.Now().After(leaf.NotAfter) || admits(config, leaf) {
			continue
		}
		if name := leaf.Subject.CommonName; len(names) < maxNamed && !slices.Contains(names, name) {
			names = append(names, name)
		}
		_ = g.Close() // an error would be about a connection that is dead
	}
	if len(names) > 0 {
		slices.Sort(names)
		f.log.Warn("embedded etcd has closed connections: their certificates are no longer taken", "clients", strings.Join(names, ","),
			"fix", "give these hosts another file of overlayd pki join-file")
	}
}

// admits reports whether a client with this certificate would be let in now.
func admits(config *tls.Config, leaf *x509.Certificate) bool {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: config.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

// refuseBroken tells of a connection that has failed, unless it was closed, as by a port scan, or to make room.
func (f *front) refuseBroken(g *guest, why string, err error) {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || f.ctx.Err() != nil {
		return
	}
	f.refuse(why, g.from.String(), err)
}

// refuse logs that a client was refused: one line for each reason in a while.
func (f *front) refuse(why, who string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused++
	if due, _ := f.notices.Due(time.Now(), pace.Notice{Text: why}); len(due) == 0 {
		return
	}
	attrs := []any{"refused", f.refused}
	if who != "" {
		attrs = append(attrs, "client", who)
	}
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	f.log.Warn(fmt.Sprintf("embedded etcd refused a client: %s", why), attrs...)
}

// readAhead is a connection of which some bytes were read.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c readAhead) Read(b []byte) (int, error) {
	if c.r.Buffered() > 0 {
		return c.r.Read(b[:min(len(b), c.r.Buffered())])
	}
	return c.Conn.Read(b)
}

// feed is the listener of a server that is given connections.
type feed struct {
	addr  net.Addr
	conns chan net.Conn
	done  <-chan struct{}
	end   func()
}

func newFeed(ctx context.Context, addr net.Addr) feed {
	ctx, end := context.WithCancel(ctx)
	return feed{addr, make(chan net.Conn), ctx.Done(), end}
}

func (l feed) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements net.Listener.
func (l feed) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l feed) Close() error {
	l.end()
	return nil
}

// Addr implements net.Listener.
func (l feed) Addr() net.Addr { return l.addr }

// sourceOf is whose connection it is, as far as connections are counted.
func sourceOf(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
