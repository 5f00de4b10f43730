package status

import (
	"fmt"
	"io"
	"net"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var now, most, all atomic.Int64
	h := Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond) // as with 10 000 peers
		w.Header().Set("X-N", fmt.Sprint(all.Add(1)))
		w.WriteHeader(http.StatusTeapot)
	}))
	defer Serve(l, h, func(error) {})()
	url := "http://" + l.Addr().String()
	var wait sync.WaitGroup
	for i := range 400 {
		wait.Go(func() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return // the machine has more to do
			}
			defer c.Close()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if i%2 == 0 {
				_, _ = io.CopyN(io.Discard, c, 1)
			}
		})
	}
	wait.Wait()
	if most.Load() != 1 || all.Load() > 100 {
		t.Errorf("%d answers at once, and %d in all, to 400 requests", most.Load(), all.Load())
	}
	before := ""
	for range 3 {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if n := r.Header.Get("X-N"); r.StatusCode != http.StatusTeapot || n == "" || n == before {
			t.Errorf("status %d, answer %q after %q: want a new one", r.StatusCode, n, before)
		}
		before = r.Header.Get("X-N")
	}
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
		if len(s.turn) != 0 || s.pending != 0 {
			t.Fatalf("%d have the turn, %d pending", len(s.turn), s.pending)
		}
	}
}
