//go:build kube

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// TestKubeChartPrefix: the policy knows the prefix of the annotations however the flag is given, so that it lets the daemon write them.
func TestKubeChartPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, prefix, key string }{
		{"--kube-annotation-prefix=example.com/x", "example.com/x", "example.com/x-"},
		{"-kube-annotation-prefix=example.com/x", "example.com/x", "example.com/x-"},
		{"--kube-annotation-prefix,example.com/x", "example.com/x", "example.com/x-"},
		{"-kube-annotation-prefix,example.com/x/", "example.com/x/", "example.com/x/"},
		{"--kube-annotation-prefix=a.example,-kube-annotation-prefix,b.example,--ip-masq", "b.example", "b.example/"},
		{"--kube-annotation-prefix,a.example,--kube-annotation-prefix=b.example", "b.example", "b.example/"},
		{"--kube-annotation-prefix=", "", flags.DefaultAnnotationPrefix + "/"},
		{"--ip-masq", flags.DefaultAnnotationPrefix, flags.DefaultAnnotationPrefix + "/"},
	} {
		args := []string{"--set", "flannel.args={--kube-subnet-mgr," + c.args + "}"}
		out, err := template(t, "1.37.2", args...)
		if err != nil || !strings.Contains(out, "'"+c.key+"' + k") {
			t.Errorf("%s: the policy has no '%s' + k: %v", c.args, c.key, err)
		}
		o, err := daemonFlags(renderedSet(t, args...).Spec.Template.Spec.Containers[0].Args, []string{"NODE_NAME=host0"})
		if err != nil || o.Kube.AnnotationPrefix != c.prefix {
			t.Errorf("%s: the daemon has %q, %v", c.args, o.Kube.AnnotationPrefix, err)
		}
	}
}

// TestKubeChartCNIConfRollsOut: pods are made again for another CNI config, which their containers read once, and not for another network config,
// which the daemons follow.
func TestKubeChartCNIConfRollsOut(t *testing.T) {
	t.Parallel()
	was := renderedSet(t).Spec.Template
	for _, c := range []struct {
		set     string
		another bool
	}{
		{`flannel.cniConf="{\"name\":\"cbr0\",\"cniVersion\":\"1.0.0\",\"plugins\":[{\"type\":\"flannel\"}]}"`, true},
		{`flannel={"vni":7,"directRouting":true}`, false},
		{`podCidr="10.5.0.0/16"`, false},
	} {
		if is := renderedSet(t, "--set-json", c.set).Spec.Template; cmp.Equal(was, is) == c.another {
			t.Errorf("%s: is the pod another? want %v, have\n%s", c.set, c.another, cmp.Diff(was, is))
		}
	}
}

// TestKubeChartFlagsRefused: a flag that would win over a value by which the probes or the PodMonitor find the daemon is refused, with the value to set
// instead. Without those it is the user's.
func TestKubeChartFlagsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, more, says string }{
		{"--healthz-port=9000", "", "flannel.args: --healthz-port is made of flannel.healthz.port"},
		{"-healthz-port=9000", "", "flannel.args: --healthz-port is made of flannel.healthz.port"},
		{"-healthz-ip,192.0.2.1", "", "flannel.args: --healthz-ip is made of flannel.healthz.port"},
		{"--healthz-ip=192.0.2.1", "", "flannel.args: --healthz-ip is made of flannel.healthz.port"},
		{"--metrics-port=9000", "podMonitor.enabled=true", "flannel.args: --metrics-port is made of metrics.port"},
		{"-metrics-ip,127.0.0.1", "podMonitor.enabled=true", "flannel.args: --metrics-ip is made of metrics.port"},
		{"--healthz-port=9000", "flannel.healthz.port=0", ""},
		{"--metrics-ip=127.0.0.1", "metrics.port=9799", ""},
		{"--metrics-peers=off", "podMonitor.enabled=true", ""},
	} {
		set := strings.TrimPrefix(c.more+",", ",") + "flannel.args={--ip-masq,--kube-subnet-mgr," + c.args + "}"
		if out, err := template(t, "1.37.2", "--set", set); (err == nil) != (c.says == "") || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v, want %q\n%s", set, err, c.says, out)
		}
	}
}

// TestKubeChartNull: null takes a value away, as everywhere with Helm. What the chart cannot do without is named.
func TestKubeChartNull(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ set, absent string }{
		{"flannel.skipCNIConfigInstallation=true,flannel.cniConf=null", "cni-conf.json"},
		{"flannel.healthz.livenessProbe=null", "periodSeconds: 30"},
		{"flannel.healthz.readinessProbe.initialDelaySeconds=null,flannel.healthz.readinessProbe.periodSeconds=null", "periodSeconds: 5"},
		{"flannel.healthz=null", "livenessProbe"}, {"global=null", "imagePullSecrets"}, {"metrics=null", "metrics-port"}, {"podMonitor=null", "PodMonitor"},
		{"seccompProfile=null", "RuntimeDefault"}, {"flannel.args=null", "--ip-masq"}, {"flannel.tolerations=null", "NoExecute"}, {"flannel.resources=null", "100m"},
	} {
		if out, err := template(t, "1.37.2", "--set", c.set); err != nil || strings.Contains(out, c.absent) {
			t.Errorf("%s: want no %q: %v\n%s", c.set, c.absent, err, out)
		}
	}
	for _, c := range []struct{ set, says string }{
		{"flannel=null", "'flannel'"}, {"flannel.backend=null", "'backend'"}, {"flannel.cniBinDir=null", "'cniBinDir'"}, {"flannel.cniConfDir=null", "'cniConfDir'"},
		{"dataplane=null", "'dataplane'"}, {"admissionPolicy=null", "'admissionPolicy'"},
	} {
		if out, err := template(t, "1.37.2", "--set", c.set); err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: want an error that names %s: %v\n%s", c.set, c.says, err, out)
		}
	}
}

// TestKubeChartKeysRefused: a key that the chart writes itself is refused, and none is there twice.
func TestKubeChartKeysRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ set, says string }{
		{"flannel.healthz.livenessProbe.httpGet.path=/x", "flannel.healthz.livenessProbe: httpGet is the chart's"},
		{"flannel.healthz.readinessProbe.exec.command={x}", "flannel.healthz.readinessProbe: exec is the chart's"},
		{`podMonitor.enabled=true,podMonitor.labels.app\.kubernetes\.io/name=x`, "podMonitor.labels: app.kubernetes.io/name is the chart's"},
		{`podLabels.app\.kubernetes\.io/instance=x`, "podLabels: app.kubernetes.io/instance is the chart's"},
		{`podAnnotations.kubectl\.kubernetes\.io/default-container=x`, "podAnnotations: kubectl.kubernetes.io/default-container is the chart's"},
		{`podAnnotations.checksum/cni-conf=x`, "podAnnotations: checksum/cni-conf is the chart's"},
	} {
		if out, err := template(t, "1.37.2", "--set", c.set); err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: want %q: %v\n%s", c.set, c.says, err, out)
		}
	}
	renderedSet(t, "--set", `podAnnotations.a=b,podLabels.a=b,podMonitor.enabled=true,podMonitor.labels.release=x,flannel.healthz.livenessProbe.failureThreshold=9`)
}
