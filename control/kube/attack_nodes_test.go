package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestAttackNodes: Nodes that change without end, with long and wrong annotations and podCIDRs of others, or an API server that refuses everything, cost neither memory nor log, and a good Node is learnt meanwhile.
func TestAttackNodes(t *testing.T) {
	const p = DefaultAnnotationPrefix + "/"
	pick := func(all ...string) string { return all[rand.IntN(len(all))] }
	evil := func(i int, version int64) *corev1.Node {
		n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("evil-%d", i), ResourceVersion: fmt.Sprint(version), CreationTimestamp: metav1.Unix(int64(1e9+i%3), 0)}}
		n.Spec.PodCIDR = pick("10.5.7.0/24", fmt.Sprintf("10.5.%d.0/24", i%256), "0.0.0.0/0", "x", "::/0", "10.5.7.0/25", "", strings.Repeat("1", 10_000))
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		long := strings.Repeat("\x1b[2J", rand.IntN(50_000))
		n.Annotations = map[string]string{p + "kube-subnet-manager": pick("true", "true", "true", "false"), p + "backend-type": pick("vxlan", "vxlan", "host-gw", "", long),
			p + "public-ip": pick("192.0.2.7", "192.0.2.9", "0.0.0.0", "255.255.255.255", long), p + "backend-data": pick(`{"VNI":1,"VtepMAC":"0e:00:00:00:00:07"}`, "null", long, `{"VNI":99999999999999999999}`),
			p + "overlayd-node": pick(`{"v":1}`, `{"v":1,"src4":"192.0.2.7"}`, long), p + "x": long}
		return n
	}
	for _, mode := range []string{"flap", "same", "410", "429", "500", "cut"} {
		t.Run(mode, func(t *testing.T) {
			var bad atomic.Bool
			var version, requests atomic.Int64
			version.Store(100)
			var goodAt atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				w.Header().Set("Content-Type", "application/json")
				q := r.URL.Query()
				switch {
				case q.Has("sendInitialEvents"):
					w.WriteHeader(http.StatusUnprocessableEntity)
					json.NewEncoder(w).Encode(noStreams())
					return
				case bad.Load() && (mode == "410" || mode == "429" || mode == "500"):
					var code int
					fmt.Sscan(mode, &code)
					w.WriteHeader(code)
					json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: map[int]metav1.StatusReason{410: metav1.StatusReasonExpired, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError}[code],
						Message: strings.Repeat("why\n", 10_000), Details: &metav1.StatusDetails{RetryAfterSeconds: 1}})
					return
				case !q.Has("watch"):
					json.NewEncoder(w).Encode(nodeList(fmt.Sprint(version.Load()), *good("a")))
					return
				}
				flush := w.(http.Flusher)
				w.WriteHeader(200)
				flush.Flush()
				enc := json.NewEncoder(w)
				sentGood := false
				for i := 0; r.Context().Err() == nil; i++ {
					if at := goodAt.Load(); at > 0 && !sentGood {
						n := good("z")
						n.Kind, n.APIVersion, n.ResourceVersion = "Node", "v1", fmt.Sprint(version.Add(1))
						n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.5.200.0/24", []string{"10.5.200.0/24"}
						n.Annotations[p+"public-ip"] = "192.0.2.200"
						enc.Encode(map[string]any{"type": "ADDED", "object": n})
						flush.Flush()
						sentGood = true
					}
					if !bad.Load() || mode[0] == '4' || mode[0] == '5' {
						if bad.Load() {
							return
						}
						time.Sleep(10 * time.Millisecond)
						continue
					}
					if mode == "cut" {
						fmt.Fprint(w, `{"type":"MODIFIED","object":{"kind":"Nod`)
						return
					}
					n := evil(rand.IntN(5000), version.Add(1))
					if mode == "same" {
						n = evil(i%5000, version.Add(1))
						n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.5.7.0/24", []string{"10.5.7.0/24"}
						n.Annotations = map[string]string{p + "kube-subnet-manager": "true", p + "backend-type": "vxlan", p + "public-ip": fmt.Sprintf("192.0.2.%d", i%200), p + "backend-data": `{"VNI":1,"VtepMAC":"0e:00:00:00:00:07"}`}
					}
					if enc.Encode(map[string]any{"type": pick("ADDED", "MODIFIED", "MODIFIED", "DELETED"), "object": n}) != nil {
						return
					}
				}
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "net-conf.json")
			os.WriteFile(file, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`), 0o600)
			var log lockedBuffer
			s, err := Open(t.Context(), Config{APIURL: server.URL, NodeName: "n", NetConfigPath: file, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			updates := s.Watch(ctx)
			var most uint64
			start := time.Now()
			var learnt time.Duration
			n, resets := 0, 0
			tick := time.NewTicker(20 * time.Millisecond)
		loop:
			for {
				select {
				case u, ok := <-updates:
					if !ok {
						break loop
					}
					if n++; u.Reset {
						resets++
					}
					for _, l := range u.Leases {
						if l.PublicIP.String() == "192.0.2.200" && learnt == 0 {
							learnt = time.Duration(time.Now().UnixNano() - goodAt.Load())
						}
					}
					_ = control.Update(u)
				case <-tick.C:
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapInuse)
					if time.Since(start) > time.Second {
						bad.Store(true)
					}
					if time.Since(start) > 5*time.Second && goodAt.Load() == 0 {
						goodAt.Store(time.Now().UnixNano())
					}
				}
			}
			t.Logf("%s: %d updates, %d resets, %d requests, heap %d MB, %d lines, %d bytes, good learnt after %s", mode, n, resets, requests.Load(), most>>20, strings.Count(log.String(), "\n"), len(log.String()), learnt)
			if lines := strings.Count(log.String(), "\n"); lines > 60 {
				t.Errorf("%d lines:\n%.3000s", lines, log.String())
			}
			if requests.Load() > 200 {
				t.Errorf("%d requests", requests.Load())
			}
			for line := range strings.Lines(log.String()) {
				if len(line) > 3000 {
					t.Errorf("%d bytes: %.300s", len(line), line)
				}
			}
		})
	}
}
