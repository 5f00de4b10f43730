package status

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func noChecks() []Check { return nil }

// TestHandler: the answers of flannel, to requests that read.
func TestHandler(t *testing.T) {
	for _, c := range []struct {
		method, path string
		ready        bool
		code         int
		text         string
	}{
		{"GET", "/livez", false, 200, "overlayd is running\n"},
		{"GET", "/healthz", false, 200, "overlayd is running\n"},
		{"GET", "/readyz", false, 503, "overlayd is not ready yet\n"},
		{"GET", "/readyz", true, 200, "overlayd is ready\n"},
		{"HEAD", "/readyz", true, 200, "overlayd is ready\n"},
		{"POST", "/readyz", true, 405, "want GET\n"},
		{"DELETE", "/none", true, 405, "want GET\n"},
		{"GET", "/", true, 404, "there are /livez, /healthz and /readyz\n"},
		{"GET", "/readyz/", true, 404, "there are /livez, /healthz and /readyz\n"},
	} {
		r := httptest.NewRecorder()
		Handler(func() bool { return c.ready }, noChecks).ServeHTTP(r, httptest.NewRequest(c.method, c.path, nil))
		if r.Code != c.code || r.Body.String() != c.text {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, r.Code, r.Body, c.code, c.text)
		}
		if c.code == 405 && r.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: Allow: %q", c.method, r.Header().Get("Allow"))
		}
	}
}

// TestServe: it answers until it is stopped, tells when it dies, and no silent client keeps it.
func TestServe(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := listen()
	died := make(chan error, 1)
	stop := Serve(l, Handler(func() bool { return true }, noChecks), func(err error) { died <- err })
	resp, err := http.Get("http://" + l.Addr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), "ready") {
		t.Errorf("got %q", text)
	}
	resp.Body.Close()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	began := time.Now()
	if stop(); time.Since(began) > 4*time.Second {
		t.Errorf("stopped after %s", time.Since(began))
	}
	select {
	case err := <-died:
		t.Errorf("a stop is reported as a death: %v", err)
	default:
	}
	l = listen()
	stop = Serve(l, Handler(func() bool { return true }, noChecks), func(err error) { died <- err })
	l.Close()
	if err := <-died; err == nil {
		t.Error("died without an error")
	}
	stop()
}
