//go:build tools

package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestToolsReadMetrics: promtool finds nothing wrong with the metrics of either dataplane.
func TestToolsReadMetrics(t *testing.T) {
	c := newCluster(t, 2, testNetwork)
	c.upPair([2]string{modeKernel, modeUserspace}, "--probe-interval=1s", "--metrics-port=9799", "--metrics-peers=on")
	for _, h := range c.hosts {
		cmd := exec.Command("promtool", "check", "metrics")
		cmd.Stdin = strings.NewReader(scrape(t, h))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", h.name, err, out)
		}
	}
}

// TestToolsShowPage: a browser shows the verdict, what to do, and the matrix of peers; the page refreshes by itself, and a
// name of a host that is HTML is text.
func TestToolsShowPage(t *testing.T) {
	c := newCluster(t, 2, testNetwork)
	c.upPair([2]string{modeUserspace, modeUserspace}, "--probe-interval=500ms", "--metrics-port=9799")
	h, peer := c.hosts[0], c.hosts[1]
	eventually(t, patience, "a healthy page", func() error {
		return shows(h, `<h1 class="healthy">`, `<li class="ok"`)
	})
	c.put(subnets+"10.5.77.0-24", `{"PublicIP":"192.0.2.77","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:77"}}`)
	c.put("/coreos.com/network/overlayd/nodes/192.0.2.77", `{"id":"x","name":"<script>document.title='taken'</script>"}`)
	eventually(t, patience, "the name is text", func() error { return shows(h, "&lt;script&gt;document.title") })
	peer.daemon.stop(unix.SIGKILL)
	eventually(t, patience, "a page with the fault", func() error {
		return shows(h, `<h1 class="degraded">`, `<li class="bad"`, "its host answers at "+peer.addr.String(), "next: see whether overlayd runs there")
	})
}

// TestToolsShowFaults: the page has the verdict of each of the nine faults within five seconds.
func TestToolsShowFaults(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			seedFaults(t, mode, func(suffers *host, verdict string) {
				state, why, _ := strings.Cut(verdict, ": ")
				if why, _, _ = strings.Cut(why, " for "); state == "healthy" { // the rest is how long; and how many peers are right is in the matrix
					why = state
				}
				eventually(t, promised(5*time.Second), "the page says "+verdict, func() error {
					return shows(suffers, `<h1 class="`+state+`">`, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(why))
				})
			})
		})
	}
}

// shows has a browser on a host load the page, and waits five seconds for what its script shows.
func shows(h *host, parts ...string) error {
	var out strings.Builder
	cmd := exec.Command("chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--user-data-dir="+h.c.t.TempDir(), "--virtual-time-budget=5000", "--dump-dom", "http://"+metricsAt+"/")
	cmd.Stdout = &out
	h.Must(cmd.Start)
	if err := cmd.Wait(); err != nil {
		return err
	}
	for _, part := range parts {
		if !strings.Contains(out.String(), part) {
			return errors.New("no " + part + " in " + out.String())
		}
	}
	if strings.Contains(out.String(), "<title>taken") {
		return errors.New("the name of a host was executed")
	}
	return nil
}
