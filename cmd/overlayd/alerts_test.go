package main

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMetricNames: alert rules and dashboard name only metrics that daemons have, and so does docs/metrics.md, which has all of overlayd's.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.put(subnets+"10.5.99.0-24", "no lease") // warned of
	a, b := c.upPair([2]string{modeUserspace, modeKernel}, "--probe-interval=200ms", "--metrics-port=9799", "--metrics-peers=on")
	warmUp(t, a, b)
	for _, h := range c.hosts { // repaired
		h.Run("ip", "link", "set", "flannel.1", "down")
		h.daemon.waitLog("repaired", patience)
		eventually(t, patience, "peers are probed", func() error {
			if !strings.Contains(scrape(t, h), "\noverlayd_peer_loss_ratio{") {
				return errors.New("not yet")
			}
			return nil
		})
	}
	live := map[string]bool{"up": true} // Prometheus makes that
	for _, h := range c.hosts {
		for line := range strings.Lines(scrape(t, h)) {
			if name := regexp.MustCompile(`^\w+`).FindString(line); name != "" {
				live[name] = true
			}
		}
	}
	name := regexp.MustCompile(`\b(?:overlayd|process|go)_\w+`)
	for _, file := range []string{"overlayd.rules.yml", "dashboard.json"} {
		text := readPage(t, "deploy/alerts/"+file)
		names := name.FindAllString(text, -1)
		for _, n := range names {
			if !live[n] {
				t.Errorf("deploy/alerts/%s names %s, which no daemon has", file, n)
			}
		}
		if len(names) < 8 {
			t.Errorf("deploy/alerts/%s names only %q", file, names)
		}
	}
	documented := map[string]bool{}
	for _, n := range regexp.MustCompile("`(overlayd_\\w+)`").FindAllStringSubmatch(readPage(t, "docs/metrics.md"), -1) {
		documented[n[1]] = true
	}
	histogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, n := range slices.Sorted(maps.Keys(live)) {
		if family := histogram.ReplaceAllString(n, ""); strings.HasPrefix(n, "overlayd_") && !documented[family] && !documented[n] {
			t.Errorf("docs/metrics.md does not have %s", n)
		}
	}
	for _, h := range c.hosts {
		h.daemon.stop(unix.SIGTERM)
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAlertsHaveRunbooks: each rule says what to do, in a section of its name, and has a test in which it fires and one in which it does not.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	rules, pages, tests := readPage(t, "deploy/alerts/overlayd.rules.yml"), readPage(t, "docs/alerts.md"), readPage(t, "deploy/alerts/overlayd.rules.test.yml")
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(names) != 8 || strings.Count(rules, "runbook_url: ") != len(names) {
		t.Errorf("alerts %q", names)
	}
	for _, n := range names {
		if !strings.Contains(pages, "\n## "+n[1]+"\n") || !strings.Contains(rules, "/docs/alerts.md#"+strings.ToLower(n[1])+"\n") {
			t.Errorf("%s has no section in docs/alerts.md, or does not name it", n[1])
		}
		fires := regexp.MustCompile(`alertname: ` + n[1] + `\n +exp_alerts:\n`)
		not := regexp.MustCompile(`alertname: ` + n[1] + `\n +exp_alerts: \[\]\n`)
		last := 0
		for _, at := range fires.FindAllStringIndex(tests, -1) {
			last = at[1]
		}
		if last == 0 || len(not.FindAllString(tests, -1)) < 2 || !not.MatchString(tests[last:]) {
			t.Errorf("%s is not tested to fire, not to fire before, and to resolve", n[1])
		}
	}
}
