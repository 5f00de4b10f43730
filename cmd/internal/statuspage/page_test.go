package statuspage

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

func sample() status.Daemon {
	subnet, vtep := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParseAddr("192.0.2.1")
	n := status.Network{
		Ready: true, SessionStart: time.Now(), Mode: "kernel", MTU: 1450,
		Peers:  []controller.PeerStatus{{Subnet: subnet, VTEP: vtep, Name: `<script>alert("x")</script>`, State: controller.PeerUp}},
		Probes: &status.Probes{Peers: []status.Probe{{Subnet: subnet, VTEP: vtep, State: status.ProbeDown, Reason: status.ReasonHostDown, Err: "host is down", Fix: "start it", Tries: 4, Lost: 4}}},
	}
	return status.Report(status.Process{Host: "h", Version: "v1", Start: time.Now()}, true, []status.Network{n})
}

func ask(method, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1"+path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	status.ReadOnly(Handler(sample)).ServeHTTP(w, r)
	return w
}

// TestPage: the page has verdict, cause and next step without JavaScript, and what other nodes wrote is text.
func TestPage(t *testing.T) {
	w := ask(http.MethodGet, "127.0.0.1:9799", "/")
	text := w.Body.String()
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, text)
	}
	for _, want := range []string{`<h1 class="degraded">degraded: `, "host is down", "next: start it", "MTU 1450", `<li class="bad"`, "100 % lost", "&lt;script&gt;alert"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "<script>alert") {
		t.Error("the name of a node is a script")
	}
	if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
		t.Errorf("policy %q", p)
	}
}

// TestRequests: a page of another site gets nothing, and nobody changes anything.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		method, host, path string
		want               int
	}{
		{http.MethodGet, "127.0.0.1", "/", http.StatusOK},
		{http.MethodGet, "localhost:80", "/v1/status", http.StatusOK},
		{http.MethodGet, "[::1]:80", "/", http.StatusOK},
		{http.MethodGet, "[::1]", "/", http.StatusOK},
		{http.MethodHead, "192.0.2.1:80", "/", http.StatusOK},
		{http.MethodGet, "rebound.example:80", "/v1/status", http.StatusForbidden},
		{http.MethodGet, "127.0.0.1.example", "/", http.StatusForbidden},
		{http.MethodGet, "", "/", http.StatusForbidden},
		{http.MethodPost, "127.0.0.1", "/", http.StatusMethodNotAllowed},
		{http.MethodPut, "127.0.0.1", "/v1/loglevel", http.StatusMethodNotAllowed},
		{http.MethodGet, "127.0.0.1", "/v1/capture", http.StatusNotFound},
		{http.MethodGet, "127.0.0.1", "/debug/pprof/", http.StatusNotFound},
	} {
		w := ask(c.method, c.host, c.path)
		if w.Code != c.want {
			t.Errorf("%s %s of host %q: %d, want %d", c.method, c.path, c.host, w.Code, c.want)
		}
		if o := w.Header().Get("Access-Control-Allow-Origin"); o != "" {
			t.Errorf("%s is let in", o)
		}
	}
}
