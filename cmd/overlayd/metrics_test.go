package main

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"golang.org/x/sys/unix"
)

const metricsAt = "127.0.0.1:9799"

// scrape returns the metrics of a daemon.
func scrape(t *testing.T, h *host) string {
	t.Helper()
	text, ok := strings.CutPrefix(get(t, h, metricsAt, "/metrics"), "200 ")
	if !ok {
		t.Fatal(text)
	}
	return text
}

// series returns the value of a metric with its labels.
func series(t *testing.T, text, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", name, text)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMetrics: the metrics of both dataplanes are as Prometheus wants them, count packets, and say that a peer is gone, as the
// page does. A port that is taken is a clear error.
func TestMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeKernel, modeUserspace}, "--probe-interval=200ms", "--metrics-port=9799", "--metrics-peers=on")
	warmUp(t, a, b)
	for _, h := range c.hosts {
		before := scrape(t, h)
		if problems, err := promlint.New(strings.NewReader(before)).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("%s: %v, %v", h.name, problems, err)
		}
		warmUp(t, a, b)
		for _, name := range []string{`overlayd_dataplane_packets_total{direction="tx",network=""}`, `overlayd_dataplane_packets_total{direction="rx",network=""}`, `overlayd_dataplane_bytes_total{direction="tx",network=""}`} {
			eventually(t, patience, h.name+" counts packets, a moment after they have passed", func() error {
				if was, is := series(t, before, name), series(t, scrape(t, h), name); is <= was {
					return fmt.Errorf("%s was %v and is %v", name, was, is)
				}
				return nil
			})
		}
	}
	first, second := c.hosts[0], c.hosts[1]
	subnet := second.gateway().Masked()
	eventually(t, patience, "the peer answers", func() error {
		if text := scrape(t, first); !strings.Contains(text, `overlayd_probed_peers{network="",state="ok"} 1`) || !strings.Contains(text, `overlayd_peer_rtt_seconds{`) {
			return errors.New(text)
		}
		return nil
	})
	if page := get(t, first, metricsAt, "/"); !strings.Contains(page, `<h1 class="healthy">healthy</h1>`) {
		t.Error(page)
	}
	second.daemon.stop(unix.SIGKILL)
	second.Run("ip", "link", "set", "eth0", "down")
	eventually(t, patience, "the peer is down", func() error {
		up := regexp.MustCompile(fmt.Sprintf(`(?m)^overlayd_peer_up\{network="",peer="[^"]*",subnet="%s"\} 0$`, subnet))
		if text := scrape(t, first); !up.MatchString(text) || series(t, text, `overlayd_state{state="degraded"}`) != 1 {
			return errors.New(text)
		}
		if page := get(t, first, metricsAt, "/"); !strings.Contains(page, `<h1 class="degraded">`) || !strings.Contains(page, `<li class="bad"`) {
			return errors.New(page)
		}
		return nil
	})
	if page := get(t, first, metricsAt, "/debug/pprof/"); !strings.HasPrefix(page, strconv.Itoa(http.StatusNotFound)) {
		t.Error(page)
	}
	other := c.hosts[0]
	other.subnetFile += ".other"
	if p := other.overlayd("--etcd-endpoints", c.url, "--subnet-file", other.subnetFile, "--metrics-port=9799"); p.wait(patience) != exitFailure ||
		!strings.Contains(p.text(), "--metrics-port 9799") || !strings.Contains(p.text(), "(pid ") {
		t.Errorf("exit code %d:\n%s", p.wait(patience), p.text())
	}
}
