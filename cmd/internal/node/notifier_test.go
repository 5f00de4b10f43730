package node

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNotifierHangs: a service manager that takes no messages holds up nobody for long, and one line says so. Once it takes messages again it
// hears the last of each kind.
func TestNotifierHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var told []string
		hangs := make(chan struct{})
		n := notifier{log: slog.New(slog.NewTextHandler(&log, nil)), send: func(state string) { <-hangs; told = append(told, state) }}
		began := time.Now()
		for _, state := range []string{"STATUS=a", "READY=1", "WATCHDOG=1", "STATUS=b"} {
			n.tell(state)
		}
		if took := time.Since(began); took > notifyPatience {
			t.Errorf("whoever tells has waited for %s", took)
		}
		if log.Len() > 0 {
			t.Errorf("logged at once: %s", &log)
		}
		for range 3 {
			time.Sleep(2 * notifyLate)
			n.tell("WATCHDOG=1")
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "err=") || !strings.Contains(text, "fix=") {
			t.Errorf("logged: %s", text)
		}
		close(hangs)
		synctest.Wait()
		if want := []string{"STATUS=a", "READY=1", "STATUS=b", "WATCHDOG=1"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if text := log.String(); !strings.Contains(text, "takes messages again") {
			t.Errorf("logged: %s", text)
		}
		n.tell("STOPPING=1")
		if told[len(told)-1] != "STOPPING=1" {
			t.Errorf("told %q", told)
		}
	})
}

// TestManagerHangs: a daemon whose service manager hangs opens another session when the network config changes, and ends when it is told to.
func TestManagerHangs(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	hangs := make(chan struct{})
	defer close(hangs)
	w.cfg.Notify = func(string) { <-hangs }
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	w.setConfig(w.config(1, ""))
	w.await("another session", func() bool { return w.opens() == 2 && w.daemon.Ready() })
	w.cancel()
	if err := w.ended(); err != nil {
		t.Error(err)
	}
}
