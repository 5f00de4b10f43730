package kube

import (
	"strings"
	"testing"
)

func TestNewNames(t *testing.T) {
	for _, c := range []struct{ prefix, backendType, err string }{
		{prefix: "flannel.alpha.coreos.com", backendType: "flannel.alpha.coreos.com/backend-type"},
		{prefix: "flannel.alpha.coreos.com/", backendType: "flannel.alpha.coreos.com/backend-type"},
		{prefix: "flannel.alpha.coreos.com/prefix", backendType: "flannel.alpha.coreos.com/prefix-backend-type"},
		{prefix: "flannel.alpha.coreos.com/prefix-", backendType: "flannel.alpha.coreos.com/prefix-backend-type"},
		{prefix: "a.b/c_d", backendType: "a.b/c_d-backend-type"},
		{prefix: "a.b/c/d", err: "subnet/kube: prefix can contain at most single slash"},
		{prefix: "com", err: "subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*"},
		{prefix: "", err: "prefix must be in a format"},
		{prefix: "/x", err: "prefix must be in a format"},
		{prefix: "a.b/c d", err: "prefix must be in a format"},
		{prefix: "Flannel.com", err: "prefix must be in a format"},
		{prefix: "x y.flannel.com/a", err: "prefix must be in a format"},
	} {
		n, err := newNames(c.prefix)
		if c.err == "" && (err != nil || n.backendType != c.backendType) {
			t.Errorf("%q: %q, %v, want %q", c.prefix, n.backendType, err, c.backendType)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), quote(c.prefix))) {
			t.Errorf("%q: %v, want %q and the value", c.prefix, err, c.err)
		}
	}
}

func TestConfigDefaultsAndErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		err  string
	}{
		{name: "no node name", err: "env variables POD_NAME and POD_NAMESPACE must be set"},
		{name: "half a pod", cfg: Config{PodName: "x"}, err: "env variables POD_NAME and POD_NAMESPACE must be set"},
		{name: "not in a pod", cfg: Config{NodeName: "x"}, err: "neither a kubeconfig nor an API URL"},
		{name: "no such kubeconfig", cfg: Config{NodeName: "x", Kubeconfig: "/nonexistent"}, err: `read kubeconfig "/nonexistent"`},
		{name: "bad prefix", cfg: Config{NodeName: "x", AnnotationPrefix: "a/b/c"}, err: "single slash"},
		{name: "good", cfg: Config{NodeName: "x", APIURL: "http://127.0.0.1:1"}},
		{name: "good in a pod", cfg: Config{PodName: "x", PodNamespace: "y", APIURL: "http://127.0.0.1:1"}},
	} {
		_, err := Open(t.Context(), c.cfg)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}
