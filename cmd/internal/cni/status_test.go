package cni

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/admin"
)

// serve answers at a Unix socket until the test ends.
func serve(t *testing.T, path string, code int, text string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/readyz?verbose" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
}

// TestAsk: what a daemon says of its networks becomes the answer about one of them.
func TestAsk(t *testing.T) {
	t.Parallel()
	const several = "[+]networks ok\n[-]red/lease failed: this node has no lease yet\n[+]blue/lease ok\n[!]blue/store failed, and the daemon stays ready: x\nreadyz check failed\n"
	for name, c := range map[string]struct {
		code int
		text string
		dir  bool // the daemon serves several networks
		want Daemon
	}{
		"ready":               {200, "[+]networks ok\n[!]store failed, and the daemon stays ready: down\nreadyz check passed\n", false, Daemon{Answers: true, Ready: true}},
		"not ready":           {503, "[+]networks ok\n[-]lease failed: no free subnet\nreadyz check failed\n", false, Daemon{Answers: true, Why: "lease failed: no free subnet"}},
		"an older daemon":     {404, "404 page not found\n", false, Daemon{}},
		"another network":     {503, several, true, Daemon{Answers: true, Ready: true}},
		"nothing known":       {503, "[-]networks failed: it is not known yet\n", true, Daemon{Answers: true, Why: "networks failed: it is not known yet"}},
		"this of several not": {503, "[+]red/lease ok\n[-]blue/lease failed: x/y\n", true, Daemon{Answers: true, Why: "blue/lease failed: x/y"}},
	} {
		file := filepath.Join(t.TempDir(), "blue.env")
		socket := admin.Path(file)
		if c.dir {
			socket = admin.PathIn(filepath.Dir(file))
		}
		serve(t, socket, c.code, c.text)
		if got := Ask(file); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestAskGarbage: who listens at the socket and does not answer as an overlayd does is an overlayd that is not ready. Decided so because
// a stuck daemon would otherwise count as none, and the node as ready. flanneld does not listen there.
func TestAskGarbage(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"": "no proper answer", "x": "not HTTP", "HTTP/1.1": "not HTTP", "HTTP/1.1 abc\r\n\r\n": "not HTTP", "\x00\xff\r\n\r\n[-]x": "not HTTP",
		"HTTP/1.1 500 x\r\n\r\n": "HTTP status 500", "HTTP/1.1 503 x\r\n\r\n[+]networks ok\n": "no whole answer",
	} {
		file := filepath.Join(t.TempDir(), "subnet.env")
		l, err := net.Listen("unix", admin.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				c.Read(make([]byte, 1000))
				c.Write([]byte(text))
				c.Close()
			}
		}()
		if got := Ask(file); !got.Answers || got.Ready || !strings.Contains(got.Why, why) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestAskSilent: a daemon that does not answer in time is not ready.
func TestAskSilent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "subnet.env")
	l, err := net.Listen("unix", admin.Path(file)) // the kernel takes the connection
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := Ask(file); !got.Answers || got.Ready || !strings.Contains(got.Why, "timeout") {
		t.Errorf("%+v", got)
	}
}

// TestAskNobody: no overlayd is where nobody listens, as after a crash, or can.
func TestAskNobody(t *testing.T) {
	t.Parallel()
	left := filepath.Join(t.TempDir(), "subnet.env")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: admin.Path(left)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, file := range []string{left, filepath.Join(t.TempDir(), "subnet.env"), filepath.Join(t.TempDir(), "none", "subnet.env"), filepath.Join(t.TempDir(), strings.Repeat("d", 120), "subnet.env")} {
		if got := Ask(file); got != (Daemon{}) {
			t.Errorf("%s: %+v", file, got)
		}
	}
}
