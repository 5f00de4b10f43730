package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
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

// TestFiles: a Store reads the files again that the kubeconfig names, and not those that it has the text of.
func TestFiles(t *testing.T) {
	const server = "https://192.0.2.1"
	pem := filepath.Join(t.TempDir(), "x.pem")
	if err := os.WriteFile(pem, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, cert, key, token := fmt.Sprintf(`"certificate-authority":%q`, pem), fmt.Sprintf(`"client-certificate":%q`, pem), fmt.Sprintf(`"client-key":%q`, pem), fmt.Sprintf(`"tokenFile":%q`, pem)
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"an authority":        {Config{Kubeconfig: kubeconfig(t, server, ","+ca, "")}, []string{DefaultNetConfigPath, pem}},
		"a certificate":       {Config{Kubeconfig: kubeconfig(t, server, "", cert+","+key)}, []string{DefaultNetConfigPath, pem, pem}},
		"a token":             {Config{Kubeconfig: kubeconfig(t, server, "", token)}, []string{DefaultNetConfigPath, pem}},
		"the text of them":    {Config{Kubeconfig: kubeconfig(t, server, `,"certificate-authority-data":"eA==",`+ca, `"client-certificate-data":"eA==","client-key-data":"eA=="`)}, []string{DefaultNetConfigPath}},
		"a network config":    {Config{APIURL: server, NetConfigPath: "/n.json"}, []string{"/n.json"}},
		"no kubeconfig there": {Config{Kubeconfig: pem + "x"}, []string{DefaultNetConfigPath}},
	} {
		if got := c.cfg.Files(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
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

// TestKubeconfigAsClientGo: whatever a kubeconfig lacks, what it has is read as client-go reads it; paths in it are of its directory.
func TestKubeconfigAsClientGo(t *testing.T) {
	t.Parallel()
	const cluster = `clusters: [{name: c, cluster: {server: "https://192.0.2.1", certificate-authority: ca.pem}}]`
	const user = `users: [{name: u, user: {client-certificate: cert.pem, client-key: key.pem}}]`
	for name, tt := range map[string]struct{ text, url string }{
		"whole":      {"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n" + cluster + "\n" + user, ""},
		"no user":    {"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: gone}}]\n" + cluster, ""},
		"no cluster": {"current-context: x\ncontexts: [{name: x, context: {cluster: gone, user: u}}]\n" + user, "https://192.0.2.2"},
		"no context": {cluster + "\n" + user, "https://192.0.2.2"},
		"empty":      {"", ""},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "kubeconfig")
		err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\n"+tt.text+"\n"), 0o600)
		for _, file := range []string{"ca.pem", "cert.pem", "key.pem"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		got, gotErr := Config{Kubeconfig: path, APIURL: tt.url}.credentials()
		want, wantErr := clientcmd.BuildConfigFromFlags(tt.url, path)
		if (gotErr == nil) != (wantErr == nil) {
			t.Errorf("%s: %v, want %v", name, gotErr, wantErr)
		} else if gotErr == nil && (got.Host != want.Host || got.TLSClientConfig.String() != want.TLSClientConfig.String()) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
