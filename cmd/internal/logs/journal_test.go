package logs_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/logs"
)

// TestJournalPriorities: each line begins with the priority of its level, whatever the format and however the log was
// derived.
func TestJournalPriorities(t *testing.T) {
	t.Parallel()
	for _, isJSON := range []bool{false, true} {
		var out bytes.Buffer
		log := logs.New(&out, logs.Config{JSON: isJSON, Journal: true, Level: slog.LevelDebug})
		for _, l := range []*slog.Logger{log, log.With("a", "b\nc"), log.WithGroup("g")} {
			for level, want := range map[slog.Level]string{
				slog.LevelError + 4: "<3>", slog.LevelError: "<3>", slog.LevelWarn: "<4>", slog.LevelInfo: "<6>", slog.LevelInfo + 1: "<6>", slog.LevelDebug: "<7>",
			} {
				out.Reset()
				l.Log(t.Context(), level, "m", "err", errors.New("two\nlines"))
				got := out.String()
				if begin := map[bool]string{false: "time=", true: "{"}[isJSON]; !strings.HasPrefix(got, want+begin) || strings.Count(got, "\n") != 1 {
					t.Errorf("JSON %v, %v: %q, want %s%s in one line", isJSON, level, got, want, begin)
				}
			}
		}
	}
}

// lines takes each record in one Write, and notices two at a time.
type lines struct {
	t    *testing.T
	busy sync.Mutex
	n    int
}

func (l *lines) Write(b []byte) (int, error) {
	if !l.busy.TryLock() {
		l.t.Error("two writes at a time")
		return len(b), nil
	}
	defer l.busy.Unlock()
	if b[0] != '<' || b[len(b)-1] != '\n' {
		l.t.Errorf("a write of %q", b)
	}
	l.n++
	return len(b), nil
}

// TestJournalLinesDoNotMix: records of several goroutines and priorities are written one after the other.
func TestJournalLinesDoNotMix(t *testing.T) {
	t.Parallel()
	w := &lines{t: t}
	log := logs.New(w, logs.Config{Journal: true, Level: slog.LevelDebug})
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for range 100 {
				log.Log(t.Context(), slog.Level(4*(i%4)-4), "m")
			}
		})
	}
	wait.Wait()
	if w.n != 800 {
		t.Errorf("%d writes", w.n)
	}
}

// TestToJournal: the variable counts only for the very stream that it names.
func TestToJournal(t *testing.T) {
	t.Parallel()
	f, err := os.Create(t.TempDir() + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino): true, fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false, fmt.Sprintf("%d:%d", st.Dev+1, st.Ino): false,
		"": false, ":": false, "0:0": false, "x": false,
	} {
		if got := logs.ToJournal(f, stream); got != want {
			t.Errorf("%q: %v", stream, got)
		}
	}
	f.Close()
	if logs.ToJournal(f, fmt.Sprintf("%d:%d", st.Dev, st.Ino)) {
		t.Error("a closed file is the journal")
	}
}

func TestPrefixed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"a": "<3>a\n", "a\n": "<3>a\n", "a\nb\n": "<3>a\n<3>b\n", "": "<3>\n"} {
		if got := logs.Prefixed(slog.LevelError, text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
