package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServerHost: the API server is known however it is configured.
func TestServerHost(t *testing.T) {
	file := func(server string) string { return kubeconfig(t, server, "", "") }
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

// kubeconfig writes a kubeconfig with more keys of its cluster and its user.
func kubeconfig(t *testing.T, server, cluster, user string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":%q%s}}],"users":[{"name":"u","user":{%s}}]}`, server, cluster, user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFilesThatAreNone: a FIFO in the place of a file keeps nobody waiting, and is named.
func TestFilesThatAreNone(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	named := func(key string) string { return fmt.Sprintf("%q:%q", key, fifo) }
	const server = "https://192.0.2.1"
	for name, path := range map[string]string{
		"kubeconfig":  fifo,
		"authority":   kubeconfig(t, server, ","+named("certificate-authority"), ""),
		"certificate": kubeconfig(t, server, "", named("client-certificate")),
		"key":         kubeconfig(t, server, "", named("client-key")),
		"token":       kubeconfig(t, server, "", named("tokenFile")),
	} {
		_, err := Open(t.Context(), Config{Kubeconfig: path, NodeName: "n"})
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fifo+": want a regular file, not a FIFO") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := Open(t.Context(), Config{APIURL: server, NodeName: "n", NetConfigPath: fifo})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Network(t.Context()); err == nil || !strings.Contains(err.Error(), fifo+": want a regular file, not a FIFO") {
		t.Errorf("network config: %v", err)
	}
}
