package conns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDialByProxy: a store is reached through the proxy of the environment, and what is wrong with that is said.
func TestDialByProxy(t *testing.T) {
	const greeting, store = "hello\n", "store.example:2379" // only the proxy knows that name
	hijack := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, answer)
			io.Copy(c, c) // echo
		}
	}
	for _, tt := range []struct {
		name, user, address, noProxy string
		proxy                        http.HandlerFunc
		want                         string // of the error
	}{
		{name: "reached", proxy: hijack("HTTP/1.1 200 OK\r\n\r\n")},
		{name: "the store speaks first", proxy: hijack("HTTP/1.1 200 Connection established\r\n\r\n" + greeting)},
		{name: "with a password", user: "me:secret@", proxy: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Proxy-Authorization") != "Basic bWU6c2VjcmV0" || r.Method != http.MethodConnect || r.Host != store {
				w.WriteHeader(http.StatusProxyAuthRequired)
				return
			}
			hijack("HTTP/1.1 200 OK\r\n\r\n")(w, r)
		}},
		{name: "refused", user: "me:secret@", proxy: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			want: "http://me:xxxxx@PROXY to store.example:2379: refused: 403 Forbidden"},
		{name: "no HTTP", proxy: hijack("220 mail ready\r\n"), want: `malformed HTTP status code "mail"`},
		{name: "closed", proxy: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "no HTTP answer"},
		{name: "a head without end", proxy: hijack("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)), want: "no HTTP answer"},
		{name: "excepted", address: "127.0.0.2:1", proxy: hijack(""), want: "dial tcp 127.0.0.2:1: connect: connection refused"},
		{name: "excepted by NO_PROXY", address: "127.0.0.2.invalid:1", noProxy: "invalid", proxy: hijack(""), want: "lookup 127.0.0.2.invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(tt.proxy)
			srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
			t.Cleanup(srv.Close)
			at := srv.Listener.Addr().String()
			t.Setenv("HTTPS_PROXY", "http://"+tt.user+at)
			t.Setenv("NO_PROXY", tt.noProxy)
			d := &Dialer{Log: slog.New(slog.DiscardHandler)}
			address := store
			if tt.address != "" {
				address = tt.address
			}
			c, err := d.DialByProxy(t.Context(), address)
			if tt.want != "" {
				if want := strings.ReplaceAll(tt.want, "PROXY", at); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, greeting); err != nil {
				t.Fatal(err)
			}
			if got, err := bufio.NewReader(c).ReadString('\n'); got != greeting {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestDialByProxyOfAnotherKind: a proxy that is not of HTTP is named, as is one whose certificate nobody has signed.
func TestDialByProxyOfAnotherKind(t *testing.T) {
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	for proxy, want := range map[string]string{
		"socks5://192.0.2.1": "HTTPS_PROXY: no http or https proxy: socks5://192.0.2.1",
		srv.URL:              "certificate",
	} {
		t.Setenv("HTTPS_PROXY", proxy)
		d := &Dialer{Log: slog.New(slog.DiscardHandler)}
		if _, err := d.DialByProxy(t.Context(), "store.example:2379"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", proxy, err, want)
		}
	}
}

// TestDialByProxyEnds: a proxy that does not answer is left when the context ends.
func TestDialByProxyEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("HTTPS_PROXY", "http://"+l.Addr().String())
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = http.ReadRequest(bufio.NewReader(c)) // then it waits
		}
		if err != nil {
			t.Error(err)
		}
		cancel(enough)
		<-t.Context().Done()
	}()
	if _, err := (&Dialer{Log: slog.New(slog.DiscardHandler)}).DialByProxy(ctx, "store.example:2379"); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
}

// TestPortsTakenBesideAProxy: a user of the host who has every port of it keeps no store from being reached through a proxy.
func TestPortsTakenBesideAProxy(t *testing.T) {
	h := netnstest.New(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
			io.Copy(c, c)
			c.Close()
		}
	}))
	srv.Listener.Close()
	h.Must(func() (err error) { srv.Listener, err = net.Listen("tcp", "127.0.0.1:901"); return err })
	srv.Start()
	t.Cleanup(srv.Close)
	h.TakePorts(t, "")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:901")
	h.Must(func() error {
		c, err := (&Dialer{Log: slog.New(slog.DiscardHandler)}).DialByProxy(t.Context(), "store.example:2379")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "x"); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	})
}
