package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
)

// oneNode is a Node as the API server writes it.
const oneNode = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"5","creationTimestamp":"2024-01-01T00:00:00Z"},"spec":{"podCIDR":"10.5.1.0/24","podCIDRs":["10.5.1.0/24"]}}`

// openAt opens a Store at an API server that answers all but what bad answers.
func openAt(t *testing.T, log slog.Handler, bad func(w http.ResponseWriter, r *http.Request) bool) *Store {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case bad(w, r):
		case r.URL.Query().Has("sendInitialEvents"):
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","details":{"causes":[{"reason":"FieldValueForbidden","field":"sendInitialEvents"}]},"code":422}`)
		case r.URL.Path == "/api/v1/nodes":
			fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`+oneNode+`]}`)
		default:
			fmt.Fprint(w, oneNode)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "net-conf.json")
	if err := os.WriteFile(file, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{APIURL: server.URL, NodeName: "n", NetConfigPath: file, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func isWatch(r *http.Request) bool {
	return r.URL.Query().Has("watch") && !r.URL.Query().Has("sendInitialEvents")
}

// TestAnswersWithoutEnd: an answer that does not end costs little memory, whatever the request was and if it is compressed. The connection ends.
func TestAnswersWithoutEnd(t *testing.T) {
	const enough = 1 << 30 // of bytes, if nobody ends the connection
	follow := func(ctx context.Context, s *Store) {
		for range s.Watch(ctx) {
		}
	}
	for _, tt := range []struct {
		name   string
		bad    func(r *http.Request) bool
		status int
		do     func(ctx context.Context, s *Store)
	}{
		{"a patch", func(r *http.Request) bool { return r.Method == http.MethodPatch }, http.StatusOK, func(ctx context.Context, s *Store) {
			if n, err := s.get(ctx); err == nil {
				s.send(ctx, n, []byte(`{}`))
			}
		}},
		{"a review", func(r *http.Request) bool { return r.Method == http.MethodPost }, http.StatusOK, func(ctx context.Context, s *Store) {
			s.Tell(ctx, control.Event{Reason: "x", Text: "y"})
		}},
		{"an event of a watch", isWatch, http.StatusOK, follow},
		{"a watch that is refused", isWatch, http.StatusForbidden, follow},
	} {
		for _, zipped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, compressed %t", tt.name, zipped), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var sent, most atomic.Int64
				runtime.GC() // tests before this one leave garbage
				before := heapInUse()
				s := openAt(t, slog.DiscardHandler, func(w http.ResponseWriter, r *http.Request) bool {
					if !tt.bad(r) {
						return false
					}
					defer cancel()
					to := io.Writer(w)
					if zipped {
						w.Header().Set("Content-Encoding", "gzip")
						z := gzip.NewWriter(w)
						defer z.Close()
						to = z
					}
					w.WriteHeader(tt.status)
					io.WriteString(to, `{"type":"`)
					piece := bytes.Repeat([]byte("a"), 1<<20)
					for sent.Load() < enough {
						n, err := to.Write(piece)
						if err != nil {
							return true
						}
						sent.Add(int64(n))
						most.Store(max(most.Load(), heapInUse()-before))
					}
					return true
				})
				tt.do(ctx, s)
				t.Logf("%d MB sent, %d MB more of heap", sent.Load()>>20, most.Load()>>20)
				if sent.Load() >= enough || most.Load() > 150<<20 || sent.Load() == 0 {
					t.Errorf("%d bytes sent, %d more of heap", sent.Load(), most.Load())
				}
			})
		}
	}
}

// heapInUse is how much this process has, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// TestWatchCutAtOnce: a stream of changes that is cut in the midst of its second event is asked for a few times a second, and costs a few lines of log.
func TestWatchCutAtOnce(t *testing.T) {
	var asked atomic.Int64
	var log bytes.Buffer
	s := openAt(t, slog.NewTextHandler(&log, nil), func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) {
			return false
		}
		asked.Add(1)
		fmt.Fprint(w, `{"type":"MODIFIED","object":`+oneNode+`}{"type":"MODIFIED","object":{"kind":"Nod`)
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for range s.Watch(ctx) {
	}
	if n, lines := asked.Load(), strings.Count(log.String(), "\n"); n < 2 || n > 30 || lines > 10 {
		t.Errorf("asked %d times, and logged %d lines:\n%s", n, lines, &log)
	}
}

// TestRedirects: none is followed, and the error says where it leads.
func TestRedirects(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for method, do := range map[string]func(s *Store) error{
			http.MethodGet:   func(s *Store) error { _, err := s.get(t.Context()); return err },
			http.MethodPatch: func(s *Store) error { _, err := s.send(t.Context(), good("n"), []byte(`{}`)); return err },
			http.MethodPost:  func(s *Store) error { _, err := s.mayTell(t.Context()); return err },
			"WATCH":          func(s *Store) error { _, err := s.api.watchNodes(t.Context(), metav1.ListOptions{}); return err },
			"VERSION":        func(s *Store) error { _, err := s.ServerVersion(t.Context()); return err },
		} {
			t.Run(fmt.Sprint(status, method), func(t *testing.T) {
				var followed atomic.Bool
				other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					followed.Store(true)
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprint(w, oneNode)
				}))
				defer other.Close()
				s := openAt(t, slog.DiscardHandler, func(w http.ResponseWriter, r *http.Request) bool {
					http.Redirect(w, r, other.URL+"/there?q", status)
					return true
				})
				err := do(s)
				if err == nil || !strings.Contains(err.Error(), `redirects to "`+other.URL+`/there"`) || followed.Load() {
					t.Errorf("followed: %t, %v", followed.Load(), err)
				}
				if st := s.Status(); !st.Since.IsZero() && (!st.Connected || !strings.Contains(st.Err, "redirects")) {
					t.Errorf("the status is %+v", st)
				}
			})
		}
	}
}

// TestErrorsOfClientGo: what client-go calls an error is for level Debug.
func TestErrorsOfClientGo(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelInfo: "", slog.LevelDebug: "level=DEBUG msg=broken\n"} {
		var log bytes.Buffer
		drop := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		h := demoted{slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level, ReplaceAttr: drop})}
		if err := h.Handle(t.Context(), slog.NewRecord(time.Now(), slog.LevelError, "broken", 0)); err != nil || log.String() != want {
			t.Errorf("at level %s: %q, %v; want %q", level, &log, err, want)
		}
	}
}
