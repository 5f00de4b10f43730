package kube

import (
	"os"
	"path/filepath"
	"testing"
)

// TestServerHost: the API server is known however it is configured.
func TestServerHost(t *testing.T) {
	file := func(server string) string {
		name := filepath.Join(t.TempDir(), "kubeconfig")
		text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"` + server + `"}}],"users":[{"name":"u","user":{}}]}`
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"kubeconfig", "10.5.7.1", Config{Kubeconfig: file("https://10.5.7.1:6443")}},
		{"kubeconfig over IPv6", "fd00::1", Config{Kubeconfig: file("https://[fd00::1]:6443")}},
		{"kubeconfig with a name and no scheme", "api.example", Config{Kubeconfig: file("api.example:6443")}},
		{"a URL", "192.0.2.1", Config{APIURL: "http://192.0.2.1:8080"}},
		{"a URL before the kubeconfig's", "192.0.2.1", Config{Kubeconfig: file("https://10.5.7.1:6443"), APIURL: "https://192.0.2.1"}},
		{"no file", "", Config{Kubeconfig: filepath.Join(t.TempDir(), "none")}},
		{"nothing, outside of a pod", "", Config{}},
	} {
		if got := c.cfg.ServerHost(); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
