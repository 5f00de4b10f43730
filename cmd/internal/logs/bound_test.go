package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBound: many kinds of lines together are fewer than 100 in any minute, each kind is written, and what is not is counted and told.
func TestBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out safe
		log := New(&out, Config{Level: slog.LevelDebug})
		b := NewBound(log)
		one, other := b.Of(log), b.Of(log.With("network", "z")).With("x", 1)
		const kinds, each, minutes = 20, 40, 3
		for range minutes {
			for range each {
				for k := range kinds {
					[]*slog.Logger{one, other}[k%2].Warn(fmt.Sprint("kind ", k))
					one.Debug("detail")
				}
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		text := out.String()
		for k := range kinds {
			if n := strings.Count(text, fmt.Sprintf("%q", fmt.Sprint("kind ", k))); n < boundEach*minutes {
				t.Errorf("kind %d: %d lines", k, n)
			}
		}
		written, told := strings.Count(text, "msg=\"kind "), 0
		if written > 100*minutes {
			t.Errorf("%d lines in %d minutes", written, minutes)
		}
		for line := range strings.Lines(text) {
			if _, after, ok := strings.Cut(line, "held back: too many in one minute\" count="); ok {
				n := 0
				fmt.Sscan(after, &n)
				told += n
			}
		}
		if written+told != kinds*each*minutes {
			t.Errorf("%d lines written and %d told as a number, of %d", written, told, kinds*each*minutes)
		}
		if n := strings.Count(text, "detail"); n != kinds*each*minutes {
			t.Errorf("%d debug messages", n)
		}
		if twice := b.Of(one); twice != one {
			t.Error("a line counts twice")
		}
		if log := New(&out, Config{Level: slog.LevelInfo}); (*Bound)(nil).Of(log) != log {
			t.Error("nothing bounds")
		}
	})
}

// TestBoundOfAnyMinute: a minute may begin at any time.
func TestBoundOfAnyMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out safe
		b := NewBound(New(&out, Config{Level: slog.LevelInfo}))
		log := b.Of(New(&out, Config{Level: slog.LevelInfo}))
		const kinds = 5
		log.Warn("kind 0")
		for range 2 {
			time.Sleep(50 * time.Second)
			for i := range 200 {
				log.Warn(fmt.Sprint("kind ", i%kinds))
			}
		}
		if n := strings.Count(out.String(), "msg=\"kind "); n != 1+boundEach*kinds+boundAll {
			t.Errorf("%d lines, want %d: two bursts within a minute have no more than one", n, 1+boundEach*kinds+boundAll)
		}
		time.Sleep(2 * time.Minute) // until the number is told
	})
}

// safe is a buffer for several goroutines.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
