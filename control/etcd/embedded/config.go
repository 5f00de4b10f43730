package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// peerURL is the member's identity inside its own data. Nothing listens there,
// and it never changes, so that a restart may listen anywhere.
const peerURL = "http://127.0.0.1:2380"

// Memory is what the process of a Server may have before it gives back garbage, in bytes: see garbage.Bound.
const Memory = 72 << 20

const (
	quotaBytes        = 1 << 30 // of the database; 100 000 leases take 40 MB
	compactionHistory = "1h"    // how long a disconnected watcher could resume; with a guard see history.go

	// A member alone waits for nobody's vote: a tenth of etcd's times is safe, and
	// it is ready in a tenth of the time.
	tickMs, electionMs = 10, 100

	// gRPC has buffers of 32 KiB each for every connection: a stranger may have thousands.
	readBuffer, writeBuffer = 1 << 10, 4 << 10

	// etcd has the last writes in memory, for other members and for a restart: it reads as many as snapshotWrites of them then. Each has at
	// most maxRequest bytes.
	keptWrites, snapshotWrites = 1, 200
	maxRequest                 = 192 << 10

	maxHeader  = 16 << 10 // bytes of a request's header; gRPC alone would take 16 MiB, for as long as the RPC goes on
	maxStreams = 16384    // of one connection: a daemon that watches networks has one or two for each
)

// keepAlive ends connections that nobody uses: a daemon always watches something. It finds those whose host is gone.
var keepAlive = keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: time.Minute, Timeout: 20 * time.Second}

// config returns the configuration of a member that is alone.
func (s *Server) config(cfg Config, listen url.URL, advertise []url.URL) *embed.Config {
	peer, _ := url.Parse(peerURL)
	c := embed.NewConfig()
	c.Name = cfg.Name
	c.Dir = cfg.Dir
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{*peer}
	c.InitialCluster = cfg.Name + "=" + peerURL
	c.ListenClientUrls = []url.URL{listen}
	c.AdvertiseClientUrls = advertise
	c.TickMs, c.ElectionMs = tickMs, electionMs
	c.EnableGRPCGateway = false
	c.AutoCompactionMode = embed.CompactorModePeriodic
	c.AutoCompactionRetention = compactionHistory
	c.QuotaBackendBytes = quotaBytes
	c.SnapshotCatchUpEntries, c.SnapshotCount = keptWrites, snapshotWrites
	c.UnsafeNoFsync = cfg.NoFsync
	c.MaxConcurrentStreams = maxStreams
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.Creds(s.conns), grpc.ConnectionTimeout(greeting), grpc.KeepaliveParams(keepAlive),
		grpc.MaxHeaderListSize(maxHeader), grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer)}
	if s.guard != nil {
		c.MaxRequestBytes = maxRequest
		// etcd alone has gRPC keep 512 KiB more of a request that never ends.
		c.GRPCAdditionalServerOptions = append(append(c.GRPCAdditionalServerOptions, grpc.MaxRecvMsgSize(maxRequest)), s.guard.options()...)
	}
	c.ServiceRegister = func(g *grpc.Server) { s.grpc <- g }
	// etcd serves both by default: /debug/vars holds the command line of the process.
	c.UserHandlers = map[string]http.Handler{"/debug/": http.NotFoundHandler(), "/metrics": http.NotFoundHandler()}
	fatal := cfg.Fatal
	if fatal != nil {
		fatal = func(err error) { cfg.Fatal(withCause(err, cfg.Dir)) }
	}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(cfg.Log, fatal))
	return c
}

// CheckListen refuses what cannot be a listen URL on any host.
func CheckListen(text string) error {
	_, err := parseListen(text)
	return err
}

// parseListen checks a listen URL: what etcd accepts, less host names, which say nothing about what is listened on.
func parseListen(text string) (url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return url.URL{}, fmt.Errorf("listen address %q: %w", text, err)
	}
	switch u.Scheme {
	case "unix":
		if u.Host+u.Path == "" {
			return url.URL{}, fmt.Errorf("listen address %q: want unix://<path>", text)
		}
		return *u, nil
	case "http", "https":
	default:
		return url.URL{}, fmt.Errorf("listen address %q: want https://<ip>:<port>, http://<ip>:<port> or unix://<path>", text)
	}
	if (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return url.URL{}, fmt.Errorf("listen address %q: want %s://<ip>:<port> and nothing else", text, u.Scheme)
	}
	if u.Hostname() == "localhost" {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	if ap, err := netip.ParseAddrPort(u.Host); err != nil || ap.Port() == 0 {
		return url.URL{}, fmt.Errorf("listen address %q: want %s://<ip>:<port>, such as %s", text, u.Scheme, DefaultListenClient)
	}
	u.Path = ""
	return *u, nil
}

// isLocal reports whether only this host can reach a listen URL.
func isLocal(listen url.URL) bool {
	ap, err := netip.ParseAddrPort(listen.Host)
	return listen.Scheme == "unix" || err == nil && ap.Addr().IsLoopback()
}

// advertised returns what clients are to dial for a listen URL: itself, or
// every address of the host if it is the unspecified address.
func advertised(listen url.URL) ([]url.URL, error) {
	ap, err := netip.ParseAddrPort(listen.Host)
	if listen.Scheme == "unix" || err != nil || !ap.Addr().IsUnspecified() {
		return []url.URL{listen}, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var urls []url.URL
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() || (ap.Addr().Is4() && !p.Addr().Is4()) {
			continue
		}
		host := net.JoinHostPort(p.Addr().String(), strconv.Itoa(int(ap.Port())))
		urls = append(urls, url.URL{Scheme: listen.Scheme, Host: host})
	}
	if len(urls) == 0 {
		return nil, fmt.Errorf("listen address %q: the host has no address to advertise", listen.String())
	}
	return urls, nil
}

func texts(urls []url.URL) []string {
	var s []string
	for _, u := range urls {
		s = append(s, u.String())
	}
	return s
}

// ErrListen says that the listen address is taken, or does not belong to this host.
var ErrListen = errors.New("listen address")

// explain names the field of cfg that an error of etcd is about.
func explain(err error, cfg Config) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w %q is in use by another process: %w", ErrListen, cfg.ListenClient, err)
	case errors.As(err, new(*net.OpError)) && errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w %q is not for this user: %w", ErrListen, cfg.ListenClient, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w %q is not an address of this host: %w", ErrListen, cfg.ListenClient, err)
	}
	err = fmt.Errorf("start etcd server in data directory %q, listen address %q: %w", cfg.Dir, cfg.ListenClient, withCause(err, cfg.Dir))
	if !errors.As(err, new(syscall.Errno)) && !errors.Is(err, ErrInUse) { // with one, something is wrong outside of the data
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
