package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
)

func TestParseListen(t *testing.T) {
	for _, c := range []struct {
		text, want string // want "": an error
		local      bool
	}{
		{"http://127.0.0.1:2379", "http://127.0.0.1:2379", true},
		{"http://127.0.0.1:2379/", "http://127.0.0.1:2379", true},
		{"http://127.9.9.9:1", "http://127.9.9.9:1", true},
		{"http://localhost:2379", "http://127.0.0.1:2379", true},
		{"http://[::1]:2379", "http://[::1]:2379", true},
		{"http://0.0.0.0:2379", "http://0.0.0.0:2379", false},
		{"http://[::]:2379", "http://[::]:2379", false},
		{"http://192.0.2.1:65535", "http://192.0.2.1:65535", false},
		{"https://192.0.2.1:2379/", "https://192.0.2.1:2379", false},
		{"https://[::1]:2379", "https://[::1]:2379", true},
		{"unix:///run/e.sock", "unix:///run/e.sock", true},
		{"unix://e.sock", "unix://e.sock", true},
		{text: ""},
		{text: "unix://"},
		{text: "http://"},
		{text: "http://127.0.0.1:0"},
		{text: "http://127.0.0.1:65536"},
		{text: "http://127.0.0.1:port"},
		{text: "http://localhost"},
		{text: "http://host.example:2379"},
		{text: "http://::1:2379"},
		{text: "http://127.0.0.1:1?x=y"},
		{text: "http://user:pass@127.0.0.1:1"},
		{text: "https://host.example:2379"},
		{text: "tcp://127.0.0.1:1"},
		{text: "http://127.0.0.1:1\x7f"},
	} {
		got, err := parseListen(c.text)
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", c.text)) {
				t.Errorf("%q: got %v, %v, want an error with the text", c.text, got.String(), err)
			}
			continue
		}
		if err != nil || got.String() != c.want || isLocal(got) != c.local {
			t.Errorf("%q: got %s, local %v, %v, want %s, local %v", c.text, got.String(), isLocal(got), err, c.want, c.local)
		}
	}
}

func TestAdvertised(t *testing.T) {
	for _, c := range []struct {
		listen string
		itself bool
		v6     bool // IPv6 addresses may be among them
	}{
		{listen: "http://127.0.0.1:2379", itself: true},
		{listen: "http://192.0.2.1:2379", itself: true},
		{listen: "unix:///run/e.sock", itself: true},
		{listen: "http://0.0.0.0:2379"},
		{listen: "http://[::]:2379", v6: true},
	} {
		listen, err := parseListen(c.listen)
		if err != nil {
			t.Fatal(err)
		}
		got, err := advertised(listen)
		if err != nil || len(got) == 0 {
			t.Errorf("%s: got %v, %v", c.listen, got, err)
		}
		if c.itself && (len(got) != 1 || got[0] != listen) {
			t.Errorf("%s: got %v, want itself", c.listen, texts(got))
		}
		for _, u := range got {
			if ip := net.ParseIP(u.Hostname()); !c.itself && (ip == nil || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || u.Port() != "2379") {
				t.Errorf("%s: advertised %s", c.listen, u.String())
			}
			if strings.Contains(u.Host, "[") && !c.v6 {
				t.Errorf("%s: advertised %s, where nothing listens", c.listen, u.String())
			}
		}
	}
}

// TestServerConfigHasNoPeers: the member never listens for others, and the
// guard is there only with a prefix.
func TestServerConfigHasNoPeers(t *testing.T) {
	listen := url.URL{Scheme: "http", Host: "127.0.0.1:2379"}
	for prefix, guarded := range map[string]bool{"": false, "/p": true} {
		s := &Server{conns: newConnTracker()}
		if guarded {
			s.guard = newGuard(prefix)
		}
		c := s.config(Config{Dir: "/x", Name: "n", Prefix: prefix}, listen, []url.URL{listen})
		if err := c.Validate(); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
		if len(c.ListenPeerUrls) != 0 || c.EnableGRPCGateway || len(c.ListenMetricsUrls) != 0 {
			t.Errorf("prefix %q: listens for more than clients: %v, %v", prefix, c.ListenPeerUrls, c.ListenMetricsUrls)
		}
		if got := len(c.GRPCAdditionalServerOptions); (got > 6) != guarded {
			t.Errorf("prefix %q: %d gRPC options, want a guard: %v", prefix, got, guarded)
		}
	}
}

func TestExplainKeepsTheCause(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), ListenClient: "http://192.0.2.1:2379"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}, "in use by another process"},
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)}, "not an address of this host"},
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EACCES)}, "not for this user"},
		{io.ErrUnexpectedEOF, fmt.Sprintf("data directory %q", cfg.Dir)},
	} {
		err := explain(c.err, cfg)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), cfg.ListenClient) {
			t.Errorf("%v: got %v, want the cause, the address and %q", c.err, err, c.want)
		}
	}
}

// TestEtcdsLogLevels: etcd warns at every start; only its errors concern the operator.
func TestEtcdsLogLevels(t *testing.T) {
	for _, c := range []struct {
		name string
		log  func(*zap.Logger)
		want string // at level Debug; "" nothing
	}{
		{"info", func(l *zap.Logger) { l.Info("x") }, ""},
		{"debug", func(l *zap.Logger) { l.Debug("x") }, ""},
		{"warning", func(l *zap.Logger) { l.Warn("slow", zap.Int("ms", 7)) }, `level=DEBUG msg="etcd server: slow" ms=7`},
		{"error", func(l *zap.Logger) { l.Error("bad", zap.String("k", "v")) }, `level=WARN msg="etcd server: bad" k=v`},
		{"error at every start", func(l *zap.Logger) { l.Error("failed to update storage version") }, `level=DEBUG msg="etcd server: failed to update storage version"`},
		{"error at every stop", func(l *zap.Logger) { l.Error("setting up serving from embedded etcd failed.") }, `level=DEBUG msg="etcd server: setting up serving from embedded etcd failed."`},
		{"error of what it needs later", func(l *zap.Logger) { l.Error("failed to preallocate space when creating a new WAL") }, `level=DEBUG msg="etcd server: failed to preallocate space when creating a new WAL"`},
		{"fields of a child", func(l *zap.Logger) { l.With(zap.String("a", "b")).Error("bad", zap.Error(io.EOF)) }, `level=WARN msg="etcd server: bad" a=b error=EOF`},
		{"a skipped field", func(l *zap.Logger) { l.Error("bad", zap.Skip()) }, `level=WARN msg="etcd server: bad"`},
	} {
		var out bytes.Buffer
		c.log(zapLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: dropTime})), nil))
		if got := strings.TrimSpace(out.String()); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	zapLogger(nil, nil).Error("goes nowhere")
}

func dropTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// TestEtcdsWarningsCostNothingAtLevelInfo: the core refuses them before their fields are made.
func TestEtcdsWarningsCostNothingAtLevelInfo(t *testing.T) {
	var out bytes.Buffer
	l := zapLogger(slog.New(slog.NewTextHandler(&out, nil)), nil)
	if l.Check(zap.WarnLevel, "slow") != nil || l.Check(zap.ErrorLevel, "bad") == nil {
		t.Error("a warning is enabled, or an error is not")
	}
}

// TestFatalOfEtcd: os.Exit would hide why etcd ends. Whoever runs it is told, with the cause, or it panics.
func TestFatalOfEtcd(t *testing.T) {
	for name, end := range map[string]func(*zap.Logger){
		"fatal": func(l *zap.Logger) { l.Fatal("failed to commit tx", zap.Int("n", 1), zap.Error(syscall.ENOSPC)) },
		"panic": func(l *zap.Logger) { l.Panic("failed to commit tx", zap.Error(syscall.ENOSPC)) },
	} {
		for _, handled := range []bool{true, false} {
			var out bytes.Buffer
			var told, panicked error
			var fatal func(error)
			if handled {
				fatal = func(err error) { told = err }
			}
			func() {
				defer func() { panicked, _ = recover().(error) }()
				end(zapLogger(slog.New(slog.NewTextHandler(&out, nil)), fatal))
			}()
			for _, err := range []error{told, panicked} {
				if err == nil && !handled {
					continue
				}
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "etcd server: failed to commit tx") {
					t.Errorf("%s: told %v, panicked with %v", name, told, panicked)
				}
			}
			if panicked == nil || out.Len() > 0 {
				t.Errorf("%s: panicked with %v, logged %s", name, panicked, &out)
			}
		}
	}
}

func TestConnTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := newConnTracker()
		if tracker.Clone() != tracker {
			t.Error("a clone does not see the connections")
		}
		accept := func() (server, client net.Conn, err error) {
			here, there := net.Pipe()
			server, _, err = tracker.ServerHandshake(here)
			return server, there, err
		}
		gone, _, err := accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := gone.Close(); err != nil || len(tracker.conns) != 0 {
			t.Errorf("closed by itself: %v, %d left", err, len(tracker.conns))
		}
		_, client, err := accept()
		if err != nil || len(tracker.conns) != 1 {
			t.Fatalf("%v, %d tracked", err, len(tracker.conns))
		}
		tracker.closeAll()
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after closeAll a client reads %v, want EOF", err)
		}
		_, late, err := accept()
		if !errors.Is(err, errStopping) {
			t.Errorf("a connection after closeAll: %v", err)
		}
		if _, err := late.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a late client reads %v, want EOF", err)
		}
		tracker.closeAll()
	})
}
