package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
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

// TestWatchNetwork: the file is read again and again; what is not usable is logged and sent, once each time that it becomes so.
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
		if n := <-networks; !errors.Is(n.Err, control.ErrNoNetwork) {
			t.Errorf("without a file: %+v", n)
		}
		for _, mtu := range []int{1400, 0, 1400, 0, 1300} { // 0: what is not usable
			text := fmt.Sprintf(`{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","MTU":%d}}`, mtu)
			if mtu == 0 {
				text = `{`
			}
			time.Sleep(5 * time.Second)
			write(text)
			if n := <-networks; n.Network.Backend.MTU != mtu || errors.As(n.Err, new(*control.NetworkError)) != (mtu == 0) {
				t.Errorf("got %+v, want MTU %d", n, mtu)
			}
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

// nodeAPI has one Node, which it lists, watches and patches, as an API server that cannot stream lists.
type nodeAPI struct {
	*httptest.Server

	mu      sync.Mutex
	node    *corev1.Node
	changed chan struct{} // closed at each change
}

func newNodeAPI(t *testing.T, n *corev1.Node) *nodeAPI {
	a := &nodeAPI{node: n, changed: make(chan struct{})}
	n.Kind, n.APIVersion = "Node", "v1"
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	t.Cleanup(a.CloseClientConnections)
	return a
}

// edit changes annotations; nil removes one.
func (a *nodeAPI) edit(annotations map[string]*string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.node.DeepCopy()
	for k, v := range annotations {
		if delete(n.Annotations, k); v != nil {
			n.Annotations[k] = *v
		}
	}
	version, _ := strconv.Atoi(n.ResourceVersion)
	n.ResourceVersion = strconv.Itoa(version + 1)
	a.node = n
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *nodeAPI) now() (n *corev1.Node, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node, a.changed
}

// noStreams is the answer of a server that streams no lists.
func noStreams() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid,
		Code: http.StatusUnprocessableEntity}
}

// nodeList is a list of some Nodes.
func nodeList(version string, nodes ...corev1.Node) *corev1.NodeList {
	return &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: nodes}
}

// ServeHTTP implements http.Handler.
func (a *nodeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	n, changed := a.now()
	answer, q := any(n), r.URL.Query()
	switch {
	case r.Method == http.MethodPatch:
		var p patch
		json.NewDecoder(r.Body).Decode(&p)
		a.edit(p.Metadata.Annotations)
		answer, _ = a.now()
	case q.Has("sendInitialEvents"):
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer = noStreams()
	case q.Has("watch"):
		for seen := q.Get("resourceVersion"); ; n, changed = a.now() {
			if n.ResourceVersion != seen {
				seen = n.ResourceVersion
				json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": n})
			}
			w.(http.Flusher).Flush()
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			}
		}
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		answer = nodeList(n.ResourceVersion, *n)
	}
	json.NewEncoder(w).Encode(answer)
}

// awaitNode takes updates of a cluster of one Node until one has a lease for which ok holds, or says with nil that it cannot be read.
func awaitNode(t *testing.T, updates <-chan control.Update, what string, ok func(l *control.Lease) bool) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	var last control.Update
	for {
		select {
		case last = <-updates:
		case <-timeout:
			t.Fatalf("not seen: %s; the last update was %+v", what, last)
		}
		if len(last.Bad) > 0 && ok(nil) || len(last.Leases) > 0 && ok(&last.Leases[0]) {
			return
		}
	}
}

// TestOwnNodeIsJudgedByThePresentLease: whenever the watch was begun, and whatever lease an earlier session of the Store had, the own
// Node is good when Acquire has returned, and is to be renewed when an operator sets an overwrite annotation or removes it.
func TestOwnNodeIsJudgedByThePresentLease(t *testing.T) {
	const v4, dual = `{"Network":"10.3.0.0/16"}`, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`
	node := control.Node{ID: "id", Name: "a", PublicIP: netip.MustParseAddr("192.0.2.9"), PublicIPv6: netip.MustParseAddr("2001:db8::9")}
	vteps := []dataplane.VTEP{{Addr: node.PublicIP, MAC: dataV4.MAC, VNI: 1}, {Addr: node.PublicIPv6, MAC: dataV6.MAC, VNI: 1}}
	for name, c := range map[string]struct {
		configs []string // of the sessions
		follow  bool     // the last one's watch begins before it acquires
	}{
		"acquired first":                 {[]string{v4}, false},
		"followed first":                 {[]string{v4}, true},
		"IPv6 in the next session":       {[]string{v4, dual}, true},
		"no more IPv6":                   {[]string{dual, v4}, true},
		"IPv6 and acquired first":        {[]string{v4, dual}, false},
		"dual-stack, and followed first": {[]string{dual}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fresh := good("a")
			fresh.Annotations = map[string]string{}
			a, path := newNodeAPI(t, fresh), filepath.Join(t.TempDir(), "net-conf.json")
			s, err := Open(t.Context(), Config{APIURL: a.URL, NodeName: "a", NetConfigPath: path, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context())
			var updates <-chan control.Update
			defer func() {
				cancel()
				for range updates {
				}
			}()
			var l control.Lease
			for i, config := range c.configs {
				if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
					t.Fatal(err)
				}
				last := i == len(c.configs)-1
				if last && c.follow {
					updates = s.Watch(ctx)
					<-updates
				}
				if l, err = s.Acquire(t.Context(), node, vteps); err != nil {
					t.Fatal(err)
				}
				if last && !c.follow {
					updates = s.Watch(ctx)
				}
			}
			is := func(l control.Lease) func(*control.Lease) bool {
				return func(got *control.Lease) bool {
					return got != nil && got.SamePublicIP(l) && slices.Equal(got.Value(), l.Value())
				}
			}
			awaitNode(t, updates, "the lease", is(l))
			for _, overwrite := range []*string{new("203.0.113.7"), nil} {
				a.edit(map[string]*string{p + "public-ip-overwrite": overwrite})
				awaitNode(t, updates, "that it is to be renewed", func(l *control.Lease) bool { return l == nil })
				if l, err = s.Renew(t.Context(), l); err != nil {
					t.Fatal(err)
				}
				awaitNode(t, updates, "the renewed lease", is(l))
			}
		})
	}
}

// endless answers as an API server behind a proxy that ends each stream at once. It counts the lists.
type endless struct {
	streams bool // a list is streamed, and cut before its end; else it is given in pages
	lists   int
	enough  func() // ends the watch when a thousand were not enough
}

// RoundTrip implements http.RoundTripper.
func (e *endless) RoundTrip(r *http.Request) (*http.Response, error) {
	n, q := good("a"), r.URL.Query()
	n.Kind, n.APIVersion = "Node", "v1"
	if e.lists > 1000 {
		e.enough()
	}
	status, answer := http.StatusOK, any(nil)
	switch {
	case q.Has("sendInitialEvents") && !e.streams:
		status, answer = http.StatusUnprocessableEntity, noStreams()
	case q.Has("sendInitialEvents"):
		e.lists++
		answer = map[string]any{"type": "ADDED", "object": n}
	case q.Has("watch"):
	case q.Get("limit") == "1": // checkVersion
		answer = nodeList("77")
	default:
		e.lists++
		answer = nodeList("77", *n)
	}
	var body []byte
	if answer != nil {
		body, _ = json.Marshal(answer)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// TestStreamsThatEndAtOnce: all Nodes are not listed again and again.
func TestStreamsThatEndAtOnce(t *testing.T) {
	for name, streams := range map[string]bool{"listed in pages": false, "a list is streamed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				proxy := &endless{streams: streams}
				h := &http.Client{Transport: proxy}
				api, err := newClient(&rest.Config{Host: "http://192.0.2.1"}, h)
				if err != nil {
					t.Fatal(err)
				}
				n, err := newNames(DefaultAnnotationPrefix)
				if err != nil {
					t.Fatal(err)
				}
				s := &Store{cfg: Config{NodeName: "a", NetConfigPath: "none", Log: slog.New(slog.DiscardHandler)}, names: n, api: api, http: h}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				proxy.enough = cancel
				for range s.Watch(ctx) {
				}
				if proxy.lists < 10 || proxy.lists > 50 {
					t.Errorf("%d lists in a minute", proxy.lists)
				}
			})
		})
	}
}
