package cni

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
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
	if got := Ask(filepath.Join(t.TempDir(), "subnet.env")); got != (Daemon{}) {
		t.Errorf("nobody: %+v", got)
	}
}

// TestAskGarbage: what is no HTTP is not an answer.
func TestAskGarbage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "HTTP/1.1", "HTTP/1.1 abc\r\n\r\n", "\x00\xff\r\n\r\n[-]x"} {
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
		if got := Ask(file); got != (Daemon{}) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
