package kube

import (
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// floods writes without end, and says how much it got rid of.
func floods(w http.ResponseWriter, sent *atomic.Int64) {
	b := []byte(strings.Repeat("a", 1<<20))
	fmt.Fprint(w, `{"type":"`)
	for sent.Load() < 1<<30 {
		n, err := w.Write(b)
		sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

const nodeText = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"5","creationTimestamp":"2024-01-01T00:00:00Z"},"spec":{"podCIDR":"10.5.1.0/24","podCIDRs":["10.5.1.0/24"]}}`

// TestAttackLongAnswers: answers of the API server to other requests than lists do not fill the memory either.
func TestAttackLongAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		bad func(r *http.Request) bool
		do  func(ctx context.Context, s *Store) error
	}{
		"patch": {func(r *http.Request) bool { return r.Method == http.MethodPatch }, func(ctx context.Context, s *Store) error {
			n, err := s.get(ctx)
			if err != nil {
				return err
			}
			_, err = s.send(ctx, n, []byte(`{}`))
			return err
		}},
		"may": {func(r *http.Request) bool { return r.Method == http.MethodPost }, func(ctx context.Context, s *Store) error {
			return s.Tell(ctx, control.Event{Reason: "x", Text: "y"})
		}},
		"watch of an endless event": {func(r *http.Request) bool {
			return r.URL.Query().Has("watch") && !r.URL.Query().Has("sendInitialEvents")
		}, func(ctx context.Context, s *Store) error {
			for range s.Watch(ctx) {
			}
			return nil
		}},
		"watch": {func(r *http.Request) bool { return r.URL.Query().Has("watch") }, func(ctx context.Context, s *Store) error {
			for range s.Watch(ctx) {
			}
			return nil
		}},
	} {
		for _, zipped := range []bool{false, true} {
			t.Run(fmt.Sprint(name, zipped), func(t *testing.T) {
				var sent atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					if !tt.bad(r) {
						if r.URL.Query().Has("sendInitialEvents") {
							w.WriteHeader(http.StatusUnprocessableEntity)
							fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","details":{"causes":[{"reason":"FieldValueForbidden","field":"sendInitialEvents"}]},"code":422}`)
							return
						}
						if r.URL.Path == "/api/v1/nodes" {
							fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`+nodeText+`]}`)
							return
						}
						fmt.Fprint(w, nodeText)
						return
					}
					status := http.StatusOK
					if name == "watch" {
						status = http.StatusForbidden
					}
					if zipped {
						w.Header().Set("Content-Encoding", "gzip")
						w.WriteHeader(status)
						z := gzip.NewWriter(w)
						b := []byte(strings.Repeat(" ", 1<<20))
						for sent.Load() < 1<<30 {
							n, err := z.Write(b)
							sent.Add(int64(n))
							if err != nil {
								return
							}
						}
						z.Close()
						return
					}
					w.WriteHeader(status)
					floods(w, &sent)
				}))
				defer server.Close()
				file := filepath.Join(t.TempDir(), "net-conf.json")
				os.WriteFile(file, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`), 0o600)
				s, err := Open(t.Context(), Config{APIURL: server.URL, NodeName: "n", NetConfigPath: file})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
				defer cancel()
				var most uint64
				done := make(chan struct{})
				go func() {
					defer close(done)
					for ctx.Err() == nil {
						var m runtime.MemStats
						runtime.ReadMemStats(&m)
						most = max(most, m.HeapInuse)
						time.Sleep(20 * time.Millisecond)
					}
				}()
				began := time.Now()
				err = tt.do(ctx, s)
				took := time.Since(began)
				cancel()
				<-done
				text := fmt.Sprint(err)
				t.Logf("after %s %.200s (%d bytes); %d MB sent, heap %d MB", took, text, len(text), sent.Load()>>20, most>>20)
				if most > 150<<20 {
					t.Errorf("%d MB of heap", most>>20)
				}
			})
		}
	}
}
