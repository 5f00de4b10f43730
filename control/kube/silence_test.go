package kube

import (
	"context"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// hanging is a listener whose connections stay up, and are neither read nor written while somebody holds its lock.
type hanging struct {
	net.Listener
	sync.RWMutex
}

type hangingConn struct {
	net.Conn
	hangs *hanging
}

// Accept implements net.Listener.
func (h *hanging) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	return hangingConn{c, h}, err
}

// Read implements net.Conn.
func (c hangingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.hangs.RLock()
	defer c.hangs.RUnlock()
	return n, err
}

// Write implements net.Conn.
func (c hangingConn) Write(b []byte) (int, error) {
	c.hangs.RLock()
	defer c.hangs.RUnlock()
	return c.Conn.Write(b)
}

// lines passes on the lines of a log.
type lines chan string

// Write implements io.Writer.
func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestServerHangs: a server that keeps its connections and does not answer is reported within 12 s, and followed again when it answers.
func TestServerHangs(t *testing.T) {
	for name, first := range map[string]bool{"from the start": true, "under a watch": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &nodeAPI{node: good("b"), changed: make(chan struct{})}
			api.node.Kind, api.node.APIVersion = "Node", "v1"
			api.Server = httptest.NewUnstartedServer(api)
			gate := &hanging{Listener: api.Listener}
			api.Listener, api.EnableHTTP2 = gate, true
			api.StartTLS()
			t.Cleanup(api.Close)
			t.Cleanup(api.CloseClientConnections)
			file := filepath.Join(t.TempDir(), "kubeconfig")
			text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
				`"clusters":[{"name":"c","cluster":{"server":"` + api.URL + `","insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{}}]}`
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			log := make(lines, 1000)
			s, err := Open(t.Context(), Config{Kubeconfig: file, NodeName: "a", NetConfigPath: "none", Log: slog.New(slog.NewTextHandler(log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			answer := sync.OnceFunc(gate.Unlock)
			hang := func() {
				gate.Lock()
				t.Cleanup(answer)
			}
			if first {
				hang()
			}
			ctx, cancel := context.WithCancel(t.Context())
			updates := s.Watch(ctx)
			defer func() {
				cancel()
				for range updates {
				}
			}()
			if !first {
				awaitNode(t, updates, "the lease", func(l *control.Lease) bool { return l != nil })
				api.edit(map[string]*string{p + "public-ip": new("192.0.2.66")})
				awaitNode(t, updates, "an event of the watch", func(l *control.Lease) bool { return l != nil && l.PublicIP.String() == "192.0.2.66" })
				hang()
			}
			awaitLine(t, log, 12*time.Second, "the API server does not answer")
			if st := s.Status(); st.Connected || !strings.Contains(st.Err, "does not answer") || st.LastAnswer.IsZero() != first {
				t.Errorf("the status is %+v", st)
			}
			answer()
			if !first {
				api.edit(map[string]*string{p + "public-ip": new("192.0.2.77")})
			}
			awaitLine(t, log, 15*time.Second, "works again")
			if first {
				awaitNode(t, updates, "the lease", func(l *control.Lease) bool { return l != nil })
			} else {
				awaitNode(t, updates, "the change", func(l *control.Lease) bool { return l != nil && l.PublicIP.String() == "192.0.2.77" })
			}
			if st := s.Status(); !st.Connected {
				t.Errorf("the status is %+v", st)
			}
		})
	}
}

// awaitLine reads a log until a line has a text.
func awaitLine(t *testing.T, log lines, within time.Duration, text string) {
	t.Helper()
	late := time.After(within)
	for {
		select {
		case line := <-log:
			t.Log(line)
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			t.Fatalf("not in the log after %s: %s", within, text)
		}
	}
}
