//go:build kube

package main

import (
	"cmp"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// relabeling is a rule of Prometheus for the labels of a target; its default action is to replace one.
type relabeling struct {
	SourceLabels                            []string
	TargetLabel, Regex, Action, Replacement string
}

// replace does what Prometheus does by a rule of one source.
func (r relabeling) replace(labels map[string]string) {
	if cmp.Or(r.Action, "replace") != "replace" || len(r.SourceLabels) != 1 {
		return
	}
	pattern := regexp.MustCompile("^(?s:" + cmp.Or(r.Regex, "(.*)") + ")$")
	value := labels[r.SourceLabels[0]]
	if m := pattern.FindStringSubmatchIndex(value); m != nil {
		labels[r.TargetLabel] = string(pattern.ExpandString(nil, cmp.Or(r.Replacement, "$1"), value, m))
	}
}

// TestKubeChartPodMonitorTargets: Prometheus asks the port of metrics at the address of the Node, of either family.
func TestKubeChartPodMonitorTargets(t *testing.T) {
	t.Parallel()
	out, err := template(t, "1.37.2", "--set", "podMonitor.enabled=true")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var monitor struct {
		Spec struct {
			PodMetricsEndpoints []struct{ Relabelings []relabeling }
		}
	}
	for doc := range strings.SplitSeq(out, "\n---\n") {
		if !strings.Contains(doc, "\nkind: PodMonitor") {
			continue
		}
		if err := yaml.Unmarshal([]byte(doc), &monitor); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
	}
	for ip, want := range map[string]string{"192.0.2.1": "192.0.2.1:9799", "fd00::1": "[fd00::1]:9799"} {
		labels := map[string]string{"__meta_kubernetes_pod_host_ip": ip, "__address__": ip}
		for _, r := range monitor.Spec.PodMetricsEndpoints[0].Relabelings {
			r.replace(labels)
		}
		if got := labels["__address__"]; got != want {
			t.Errorf("%s: the target is %s, want %s", ip, got, want)
		}
	}
}
