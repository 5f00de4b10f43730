//go:build kube

package main

import (
	"strings"
	"testing"

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
