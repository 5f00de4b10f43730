package admin

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzRequests: whatever bytes come to the socket, and in whatever pieces, the server answers or hangs up, no handler panics, and the next
// request is answered.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		"", "GET /v1/status HTTP/1.1\r\nHost: overlayd\r\n\r\n", "GET /v1/peers?peer=10.5.1.0/24 HTTP/1.1\r\nHost: x\r\n\r\n",
		"PUT /v1/loglevel HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\ndebug", "PUT /v1/loglevel HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndebug\r\n0\r\n\r\n",
		"PUT /v1/guard HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n off", "GET /v1/guard HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /../..//v1/status HTTP/1.0\r\n\r\n", "GET http://[::1]:0/v1/peers?%zz HTTP/1.1\r\nHost: \x00\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x00\x01",
		"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n", "GET /" + strings.Repeat("a", 1<<16) + " HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(seed), uint16(len(seed)/2))
	}
	dir, err := os.MkdirTemp("", "admin") // f.TempDir is too long for a socket
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	cfg, _, _ := configAt(filepath.Join(dir, "sock"))
	routes := cfg.Routes[:0]
	for _, r := range cfg.Routes {
		if !strings.Contains(r.Pattern, "pprof") { // root may have a profile of as many seconds as it likes
			routes = append(routes, r)
		}
	}
	cfg.Routes = routes
	s := start(f.Context(), cfg, false, time.Minute)
	f.Cleanup(func() { s.Stop(false) })
	f.Fuzz(func(t *testing.T, request []byte, cut uint16) {
		c, err := net.Dial("unix", cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		first := min(int(cut), len(request))
		for _, part := range [][]byte{request[:first], request[first:]} {
			_, _ = c.Write(part) // the server may have hung up
		}
		_ = c.(*net.UnixConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Errorf("no end of the answer to %q", request)
		}
		if n := s.Stats().Panics; n > 0 {
			t.Fatalf("a handler panics at %q", request)
		}
		if _, err := NewClient(cfg.Path).Status(t.Context()); err != nil {
			t.Errorf("after %q: %v", request, err)
		}
	})
}
