package etcd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

func TestOpenErrorsNameSettingAndValue(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(file, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := []string{"http://127.0.0.1:2379"}
	tests := []struct {
		name string
		cfg  etcd.Config
		want []string
	}{
		{"no endpoint", etcd.Config{}, []string{"no etcd endpoint"}},
		{"scheme", etcd.Config{Endpoints: []string{"ftp://h:1"}}, []string{"endpoint", "ftp://h:1"}},
		{"not a URL", etcd.Config{Endpoints: []string{"http://u:secret@h:port"}}, []string{"endpoint"}},
		{"password in URL", etcd.Config{Endpoints: []string{"http://u:secret@h:1"}}, []string{"endpoint", "h:1"}},
		{"mixed", etcd.Config{Endpoints: []string{"http://a:1", "https://b:1"}}, []string{"http://a:1", "https://b:1"}},
		{"prefix", etcd.Config{Endpoints: one, Prefix: "/"}, []string{"prefix is empty"}},
		{"lease TTL", etcd.Config{Endpoints: one, LeaseTTL: 1500 * time.Millisecond}, []string{"lease TTL 1.5s"}},
		{"negative lease TTL", etcd.Config{Endpoints: one, LeaseTTL: -time.Second}, []string{"lease TTL -1s"}},
		{"node TTL", etcd.Config{Endpoints: one, NodeTTL: time.Millisecond}, []string{"node TTL 1ms"}},
		{"relist", etcd.Config{Endpoints: one, Relist: time.Millisecond}, []string{"relist interval 1ms"}},
		{"CA missing", etcd.Config{Endpoints: one, CAFile: "/nonexistent/ca"}, []string{"CA file", "/nonexistent/ca"}},
		{"CA junk", etcd.Config{Endpoints: one, CAFile: file}, []string{"CA file", file}},
		{"key without certificate", etcd.Config{Endpoints: one, KeyFile: file}, []string{"certificate file", file}},
		{"certificate junk", etcd.Config{Endpoints: one, CertFile: file, KeyFile: file}, []string{"certificate file", file}},
		{"password alone", etcd.Config{Endpoints: one, Password: "secret"}, []string{"password", "user name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := etcd.Open(t.Context(), tt.cfg)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not contain %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q shows a password", err)
			}
		})
	}
}

func TestNetworkAndInit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t)
	if _, err := s.Network(t.Context()); !errors.Is(err, control.ErrNoNetwork) || !strings.Contains(err.Error(), prefix+"/config") {
		t.Errorf("Network of an empty store: %v, want ErrNoNetwork that names the key", err)
	}
	var bad *control.NetworkError
	if _, err := s.Init(t.Context(), []byte(`{"Network":"10.5.0.0/31"}`)); !errors.As(err, &bad) {
		t.Errorf("Init with a bad config: %v, want *NetworkError", err)
	}
	for _, want := range []bool{true, false} {
		if created, err := s.Init(t.Context(), []byte(config)); err != nil || created != want {
			t.Errorf("Init: %v %v, want %v", created, err, want)
		}
	}
	if n, err := s.Network(t.Context()); err != nil || n.Network.String() != "10.5.0.0/16" {
		t.Errorf("Network: %v %v", n.Network, err)
	}
	c.SetConfig(t, []byte("{"))
	if _, err := s.Network(t.Context()); !errors.As(err, &bad) {
		t.Errorf("bad config: %v, want *NetworkError", err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	for _, user := range []string{"", "root"} {
		s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{url}, Username: user, Password: user})
		if err != nil {
			t.Fatalf("Open: %v, want none while etcd is down", err)
		}
		_, err = s.Network(t.Context())
		if err == nil || !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("user %q: %v, want the endpoint and the reason", user, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Network(t.Context()); err == nil {
			t.Error("a closed store answers")
		}
	}
}

// TestSilentServer accepts connections and says nothing: calls end with their
// context at once, and Close soon after.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, user := range []string{"", "root"} {
		s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{"http://" + l.Addr().String()}, Username: user, Password: user})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		n, vteps := node(1)
		begin := time.Now()
		if _, err := s.Acquire(ctx, n, vteps); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v, want the context's error", err)
		}
		cancel()
		s.Close()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("user %q: ended after %s, want within 1s", user, took)
		}
	}
}

func TestPassword(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	if _, err := c.client.UserAdd(ctx, "root", "right-secret"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.UserGrantRole(ctx, "root", "root"); err != nil {
		t.Fatal(err)
	}
	c.SetConfig(t, []byte(config))
	if _, err := c.client.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, user := range []struct{ name, password string }{{"", ""}, {"root", "wrong-secret"}} {
		c.cfg.Username, c.cfg.Password = user.name, user.password
		s := c.open(t)
		eventually(t, "etcd refuses a user", func() bool { // a token can take longer than a call may
			_, err := s.Network(ctx)
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Fatalf("user %q: %v, want that etcd refuses it, without the password", user.name, err)
			}
			return strings.Contains(err.Error(), "refuses user") && control.Refusal(err) == control.ErrUser
		})
	}
	var now atomic.Value
	now.Store("right-secret")
	c.cfg.ReadPassword = func() (string, error) {
		s, _ := now.Load().(string)
		if s == "" {
			return "", errors.New("no password there")
		}
		return s, nil
	}
	c.cfg.Username, c.cfg.Password, c.cfg.NodeTTL = "root", "right-secret", time.Second
	s := c.open(t)
	eventually(t, "a token", func() bool { _, err := s.Network(ctx); return err == nil })
	l := acquire(t, s, 1)
	tokens := c.served(t, "Authenticate")
	c.stop(t) // forgets the token
	c.start(t, "data")
	eventually(t, "the node record's keeper gets another token", func() bool { return c.served(t, "Authenticate") > tokens })
	receive(t, watch(t, s))
	tokens = c.served(t, "Authenticate")
	for range 5 {
		if _, err := s.Renew(ctx, l); err != nil {
			t.Error(err)
		}
	}
	if got := c.served(t, "Authenticate"); got-tokens >= 5 {
		t.Errorf("%d more tokens in 5 renewals", got-tokens)
	}
	// Another password in etcd, and then here: no restart is needed.
	other, err := clientv3.New(clientv3.Config{Endpoints: c.client.Endpoints(), Username: "root", Password: "right-secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	now.Store("")
	if _, err := other.UserChangePassword(ctx, "root", "new-secret"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd refuses the password from before", func() bool {
		_, err := s.Renew(ctx, l)
		return err != nil && strings.Contains(err.Error(), "refuses user")
	})
	now.Store("new-secret")
	eventually(t, "the new password is used", func() bool { _, err := s.Renew(ctx, l); return err == nil })
	for _, says := range []string{"etcd password cannot be read again", "etcd password has changed"} {
		if n := strings.Count(log.String(), says); n != 1 {
			t.Errorf("%d lines %q:\n%s", n, says, log.String())
		}
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log shows a password:\n%s", log.String())
	}
}

// TestEndpoints: each form of them, and one that answers is enough.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	for name, endpoints := range map[string][]string{
		"unix":                   {c.url()},
		"http":                   {"http://" + c.proxy.addr()},
		"without a scheme":       {c.proxy.addr()},
		"the first is dead":      {"http://" + dead.Addr().String(), "http://" + c.proxy.addr()},
		"the last is dead":       {"http://" + c.proxy.addr(), "http://" + dead.Addr().String()},
		"unix and http":          {c.url(), "http://" + c.proxy.addr()},
		"unix that is not there": {"unix:///nonexistent/sock", c.url()},
	} {
		s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: endpoints, Prefix: prefix})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		eventually(t, name, func() bool { // the first call may find the dead one
			_, err = s.Network(t.Context())
			return err == nil
		})
		l := acquire(t, s, 1)
		if _, err := s.Renew(t.Context(), l); err != nil {
			t.Errorf("%s: renew: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWarnsOfTheClear(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]int{
		"http://192.0.2.1:2379": 1, "http://etcd.example:2379": 1, "192.0.2.1:2379": 1, "http://192.0.2.1:2379,http://192.0.2.2:2379": 1,
		"http://[2001:db8::1]:2379": 1, "http://127.0.0.1:2379": 0, "http://localhost:2379": 0, "http://[::1]:2379": 0,
		"https://192.0.2.1:2379": 0, "unix:///run/etcd.sock": 0,
	} {
		for _, how := range []struct {
			password string
			quiet    bool
		}{{}, {"secret", false}, {"secret", true}, {"", true}} {
			password, want := how.password, want
			if how.quiet && password == "" {
				want = 0
			}
			var log syncBuffer
			cfg := etcd.Config{Endpoints: strings.Split(endpoint, ","), Password: password, Quiet: how.quiet, Log: slog.New(slog.NewTextHandler(&log, nil))}
			if password != "" {
				cfg.Username = "u"
			}
			s, err := etcd.Open(t.Context(), cfg)
			if err != nil {
				t.Errorf("%s: %v", endpoint, err)
				continue
			}
			s.Close()
			text := log.String()
			if got := strings.Count(text, "not encrypted"); got != want || strings.Contains(text, "secret") {
				t.Errorf("%s: warned %d times, want %d: %s", endpoint, got, want, text)
			}
			if want > 0 && strings.Contains(text, "password") != (password != "") {
				t.Errorf("%s, password %q: %s", endpoint, password, text)
			}
		}
	}
}

// TestWarnsOfTheClearBesideFiles: certificate files encrypt what an endpoint does not say to be http.
func TestWarnsOfTheClearBesideFiles(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	for endpoint, want := range map[string]string{"192.0.2.1:2379": "", "https://192.0.2.1:2379": "", "http://192.0.2.1:2379": "not encrypted"} {
		var log syncBuffer
		s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{endpoint}, CAFile: ca.file, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if text := log.String(); !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s: logs %q, want %q", endpoint, text, want)
		}
	}
}

// TestUnreachableHasReason: whichever endpoint was the last that failed, the reason is one.
func TestUnreachableHasReason(t *testing.T) {
	t.Parallel()
	s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Network(t.Context()); control.Reason(err) != control.ReasonUnreachable {
		t.Errorf("reason %s of %v", control.Reason(err), err)
	}
}
