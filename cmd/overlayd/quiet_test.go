package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/admin"
)

// warnings returns the lines of a daemon that say that something is wrong.
func warnings(p *process) (lines []string) {
	for line := range strings.Lines(p.text()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestQuiet: nodes to which nothing happens stay healthy, say nothing, and lose nothing. OVERLAYD_QUIET=10m, as in make test-long, is
// longer than the usual two seconds.
func TestQuiet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeKernel, modeUserspace}, "--probe-interval=500ms", "--ip-masq")
	healthy := func(h *host) error {
		if code, out := overlayd(t, "status", "--subnet-file", h.subnetFile); code != 0 || !strings.HasPrefix(out, "healthy: 1 peer\n") || strings.Contains(out, "\nwarnings\n") {
			return errors.New(out)
		}
		return nil
	}
	said := map[*host]int{}
	for _, h := range c.hosts {
		eventually(t, patience, h.name+" is healthy", func() error { return healthy(h) })
		said[h] = len(warnings(h.daemon))
	}
	m, err := startMeter(a.NS, b.NS, b.addr, pace100)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < durationFrom(t, "OVERLAYD_QUIET", 2*time.Second); time.Sleep(time.Second) {
		for _, h := range c.hosts {
			if err := healthy(h); err != nil {
				t.Errorf("%s after %s: %v", h.name, time.Since(began).Round(time.Second), err)
			}
		}
	}
	if lost := m.finish(); lost > 0 {
		t.Errorf("%d packets lost", lost)
	}
	for _, h := range c.hosts {
		if more := warnings(h.daemon)[said[h]:]; len(more) > 0 {
			t.Errorf("%s: %s", h.name, strings.Join(more, ""))
		}
	}
}

// TestSecrets: nothing that a daemon says has a password, and a level that there is not is refused.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace, "--etcd-username=root", "--etcd-password="+secret, "--metrics-port=9799", "--healthz-port=8081", "-v=1")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin.Path(h.subnetFile))
	}}}
	ask := func(method, path, body string) (code int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://overlayd"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(b)
	}
	texts := map[string]string{"/metrics": scrape(t, h), "/": get(t, h, metricsAt, "/"), "/readyz?verbose": get(t, h, "127.0.0.1:8081", "/readyz?verbose")}
	for _, path := range []string{"/v1/status", "/v1/peers", "/v1/checks", "/v1/loglevel", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		_, texts[path] = ask(http.MethodGet, path, "")
	}
	if code, text := ask(http.MethodPut, "/v1/loglevel", "loud"); code != http.StatusBadRequest || !strings.Contains(text, "loud") {
		t.Errorf("level loud: %d %s", code, text)
	}
	texts["the log"] = h.daemon.text()
	for from, text := range texts {
		if text == "" || strings.Contains(text, secret) {
			t.Errorf("%s: %.2000s", from, text)
		}
	}
}
