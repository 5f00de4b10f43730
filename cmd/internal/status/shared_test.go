package status

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestManyAtOnce: however many ask and go away again, one answer is made at a time, for all who wait. Who asks alone gets a new one.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, all atomic.Int64
		h := Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(20 * time.Millisecond) // as with 10 000 peers; of the clock of the test
			w.Header().Set("X-N", fmt.Sprint(all.Add(1)))
			w.WriteHeader(http.StatusTeapot)
		}))
		ask := func(ctx context.Context) *http.Response {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			return w.Result()
		}
		gone, goAway := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer goAway()
		var wait sync.WaitGroup
		var answered atomic.Int64
		for i := range 400 {
			wait.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = gone
				}
				if r := ask(ctx); r.StatusCode == http.StatusTeapot {
					answered.Add(1)
				}
			})
		}
		wait.Wait()
		// The first answer began when it was asked for, and is for one. The second one is for all others.
		if most.Load() != 1 || all.Load() != 2 || answered.Load() < 200 {
			t.Errorf("%d answers at once, and %d in all, to %d of 400 requests", most.Load(), all.Load(), answered.Load())
		}
		before := ""
		for range 3 {
			r := ask(t.Context())
			if n := r.Header.Get("X-N"); r.StatusCode != http.StatusTeapot || n == "" || n == before {
				t.Errorf("status %d, answer %q after %q: want a new one", r.StatusCode, n, before)
			}
			before = r.Header.Get("X-N")
		}
	})
}

// slow is somebody who does not read.
type slow struct {
	http.ResponseWriter
	until chan struct{}
}

func (s slow) Write(b []byte) (int, error) { <-s.until; return len(b), nil }

// TestSlowReaders: who does not read keeps an answer in memory that others have, too. Once all have read, none is kept.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		until := make(chan struct{})
		s := Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { made.Add(1); io.WriteString(w, "x") })).(*shared)
		var wait sync.WaitGroup
		for range 120 {
			wait.Go(func() {
				s.ServeHTTP(slow{httptest.NewRecorder(), until}, httptest.NewRequest("GET", "/", nil))
			})
			time.Sleep(50 * time.Millisecond) // of the clock of the test
		}
		const seconds = 6
		if n := made.Load(); n < seconds || n > maxPending+seconds+1 {
			t.Errorf("%d answers for 120 that do not read, in %d s", n, seconds)
		}
		close(until)
		wait.Wait()
		if s.last != nil || s.pending != 0 {
			t.Errorf("%d pending, kept %v", s.pending, s.last)
		}
	})
}

// TestAnswerThatPanics: the turn and the count are given back.
func TestAnswerThatPanics(t *testing.T) {
	s := Shared(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no answer") })).(*shared)
	for range 2 {
		func() {
			defer func() { _ = recover() }()
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		}()
		if len(s.turn) != 0 || s.pending != 0 || s.asking != 0 {
			t.Fatalf("%d have the turn, %d pending", len(s.turn), s.pending)
		}
	}
}
