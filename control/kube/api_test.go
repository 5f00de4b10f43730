package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
)

// fakeAPI answers for one Node, and counts the connections that are open.
type fakeAPI struct {
	*httptest.Server
	status int // of every answer, 0: the Node

	mu   sync.Mutex
	open map[net.Conn]struct{}
	none chan struct{} // has a value when the last connection was closed
}

func newFakeAPI(t *testing.T) *fakeAPI {
	a := &fakeAPI{open: map[net.Conn]struct{}{}, none: make(chan struct{}, 1)}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if a.status != 0 {
			w.WriteHeader(a.status)
			json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": `nodes "a" is forbidden`, "code": a.status})
			return
		}
		n := good("a")
		n.Kind, n.APIVersion, n.ResourceVersion = "Node", "v1", "77"
		json.NewEncoder(w).Encode(n)
	}))
	a.Config.ConnState = func(c net.Conn, s http.ConnState) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch s {
		case http.StateNew:
			a.open[c] = struct{}{}
		case http.StateClosed:
			if delete(a.open, c); len(a.open) == 0 {
				a.none <- struct{}{}
			}
		}
	}
	a.Start()
	t.Cleanup(a.Server.Close)
	return a
}

func (a *fakeAPI) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open)
}

func openFake(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{APIURL: url, NodeName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCloseEndsConnections: one that is left idle would stay for a minute and a half.
func TestCloseEndsConnections(t *testing.T) {
	a := newFakeAPI(t)
	s := openFake(t, a.URL)
	leases, err := s.Published(t.Context(), control.Node{})
	if err != nil || len(leases) != 1 || leases[0].PublicIP.String() != "192.0.2.1" {
		t.Fatalf("leases %+v, %v", leases, err)
	}
	if n := a.connections(); n != 1 {
		t.Fatalf("%d connections", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.none:
	case <-time.After(time.Minute):
		t.Error("the connection is still open")
	}
}

// TestStoreStatus: what the server refuses is an answer, and a server that is away does not answer.
func TestStoreStatus(t *testing.T) {
	a := newFakeAPI(t)
	s := openFake(t, a.URL)
	defer s.Close()
	expect := func(when string, connected bool, revision int64, text string) {
		t.Helper()
		s.Published(t.Context(), control.Node{}) // its error is in the status
		got := s.Status()
		if got.Kind != "kubernetes" || got.Connected != connected || got.Revision != revision || !strings.Contains(got.Err, text) || (got.Err == "") != (text == "") {
			t.Errorf("%s: %+v", when, got)
		}
	}
	expect("well", true, 77, "")
	a.status = http.StatusForbidden
	expect("forbidden", true, 77, "nodes \"a\"")
	a.Server.Close()
	expect("away", false, 77, "refused")
}

// TestWatchNetwork: the file is read again and again; what is not usable is logged once each time that it becomes so, and not sent.
func TestWatchNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "net-conf.json")
		var log strings.Builder
		s := &Store{cfg: Config{NetConfigPath: path, Log: slog.New(slog.NewTextHandler(&log, nil))}}
		ctx, cancel := context.WithCancel(t.Context())
		networks := s.WatchNetwork(ctx)
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil { // as a ConfigMap is replaced: at once
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		write(`{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}`)
		if n := <-networks; n.Backend.MTU != 1400 {
			t.Errorf("MTU %d", n.Backend.MTU)
		}
		for _, text := range []string{`{`, `{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}`, `{`} {
			write(text)
			time.Sleep(5 * time.Second)
		}
		write(`{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","MTU":1300}}`)
		if n := <-networks; n.Backend.MTU != 1300 {
			t.Errorf("MTU %d", n.Backend.MTU)
		}
		cancel()
		if n, ok := <-networks; ok {
			t.Errorf("after the end: %+v", n)
		}
		if n := strings.Count(log.String(), "not usable"); n != 3 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
	})
}

// TestPodNameWithoutRight: who may not get pods is told the right that lacks, and how to do without.
func TestPodNameWithoutRight(t *testing.T) {
	a := newFakeAPI(t)
	a.status = http.StatusForbidden
	s, err := Open(t.Context(), Config{APIURL: a.URL, PodName: "p", PodNamespace: "n"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, _, err = s.PublicIPs(t.Context())
	if err == nil || !strings.Contains(err.Error(), "right to get pods") || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("got %v", err)
	}
}
