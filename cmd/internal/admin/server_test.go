package admin

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// served is a Server of a test.
type served struct {
	*Server
	*Client
	path  string
	log   *netnstest.Log
	level *slog.LevelVar
}

// socketPath returns a path that other users can reach.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "subnet.env.sock")
}

// guardSwitch is a Guard that is only a switch.
type guardSwitch struct{ on atomic.Bool }

func (g *guardSwitch) GuardIsOn() bool           { return g.on.Load() }
func (g *guardSwitch) SwitchGuard(on bool) error { g.on.Store(on); return nil }

// configAt is a Config with every route that this package has.
func configAt(path string, more ...Route) (Config, *netnstest.Log, *slog.LevelVar) {
	level, text := new(slog.LevelVar), new(netnstest.Log)
	log := slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: level}))
	networks := []status.Network{{V: status.Version, Ready: true}}
	routes := slices.Concat(LogLevelRoutes(level, log), ProfileRoutes(), GuardRoutes(new(guardSwitch), log))
	routes = append(routes,
		Route{Pattern: "GET /v1/status", Handler: JSON(func(*http.Request) any { return status.Report(status.Process{PID: 1}, true, networks) })},
		Route{Pattern: "GET /v1/peers", Handler: JSON(func(r *http.Request) any { return status.FindPeers(networks, r.FormValue("peer")) })})
	return Config{Path: path, Group: -1, Routes: append(routes, more...), Log: log}, text, level
}

// serve serves until the test ends.
func serve(t *testing.T, more ...Route) served {
	t.Helper()
	path := socketPath(t)
	cfg, log, level := configAt(path, more...)
	s := served{start(t.Context(), cfg, false, 10*time.Millisecond), NewClient(path), path, log, level}
	t.Cleanup(func() { s.Stop(false) })
	return s
}

// within polls until ok.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// TestServe: the client gets what the routes answer, and nothing is left after the end.
func TestServe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	d, err := s.Status(t.Context())
	if err != nil || d.V != status.Version || d.Process.PID != 1 || d.Verdict.State != status.Healthy || len(d.Networks) != 1 {
		t.Errorf("status %+v, %v", d, err)
	}
	if p, err := s.Peers(t.Context(), "nobody & co"); err != nil || len(p.Networks) != 1 || len(p.Networks[0].Peers) > 0 {
		t.Errorf("peers %+v, %v", p, err)
	}
	if got := s.Stats(); got.Requests != 2 || got != (status.Admin{Requests: 2}) {
		t.Errorf("stats %+v", got)
	}
	s.Stop(false)
	if left, err := filepath.Glob(s.path + "*"); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
	if _, err := s.Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("after the end: %v", err)
	}
}

// TestPlaceOfSocket: what stands at the path before decides whether a daemon listens there.
func TestPlaceOfSocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		make      func(t *testing.T, path string) // what is there before
		takePlace bool
		says      string // empty: it listens
	}{
		{"nothing", func(*testing.T, string) {}, false, ""},
		{"no directory", func(t *testing.T, path string) { check(t, os.Remove(filepath.Dir(path))) }, false, ""},
		{"a dead socket", func(t *testing.T, path string) { listenAt(t, path).Close() }, false, ""},
		{"half a socket of a process that was killed", func(t *testing.T, path string) { listenAt(t, path+suffixNew).Close() }, false, ""},
		{"a live socket", func(t *testing.T, path string) { listenAt(t, path) }, false, "another process listens"},
		{"that of the daemon before", func(t *testing.T, path string) { listenAt(t, path) }, true, ""},
		{"a file", func(t *testing.T, path string) { check(t, os.WriteFile(path, nil, 0o600)) }, true, "is not a socket"},
		{"a directory", func(t *testing.T, path string) { check(t, os.Mkdir(path, 0o700)) }, true, "is not a socket"},
		{"a link", func(t *testing.T, path string) { check(t, os.Symlink("/dev/null", path)) }, true, "is not a socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := socketPath(t)
			c.make(t, path)
			cfg, log, _ := configAt(path)
			s := Start(t.Context(), cfg, c.takePlace)
			defer s.Stop(false)
			listens := claim.IsSocketAt(s.at, path)
			if listens != (c.says == "") || !strings.Contains(log.String(), c.says) {
				t.Errorf("listens: %v, log:\n%s", listens, log)
			}
			if !listens {
				return
			}
			if _, err := NewClient(path).Status(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listenAt is a process that listens at a path, and never answers.
func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	check(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestSocketComesBack: a socket that somebody removes or replaces by a dead one is there again; the end of another process
// that had the path is noticed; and the end of the daemon leaves what is not its own.
func TestSocketComesBack(t *testing.T) {
	t.Parallel()
	s := serve(t)
	answers := func() bool { _, err := s.Status(t.Context()); return err == nil }
	within(t, "it answers", answers)
	check(t, os.Remove(s.path))
	within(t, "it answers after a removal", answers)
	other := listenAt(t, s.path+"-other") // at once in its place: between bind and listen it would look dead
	check(t, os.Rename(s.path+"-other", s.path))
	within(t, "the log says that the path is taken", func() bool { return strings.Contains(s.log.String(), "another process listens") })
	other.Close()
	within(t, "it answers after the other's end", answers)
	if n := s.Server.Stats().Restored; n != 2 {
		t.Errorf("restored %d times", n)
	}
	check(t, os.Remove(s.path))
	check(t, os.WriteFile(s.path, nil, 0o600))
	s.Stop(false)
	if _, err := os.Stat(s.path); err != nil {
		t.Errorf("another's file: %v", err)
	}
}

// TestPublishReplacesNobody: who takes the path after it was found free keeps it.
func TestPublishReplacesNobody(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	listenAt(t, path)
	was, err := os.Lstat(path)
	check(t, err)
	listenAt(t, path+suffixNew)
	if _, err := publish(path+suffixNew, path, -1, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	if !claim.IsSocketAt(was, path) {
		t.Error("the other's socket was replaced")
	}
}

// TestNextDaemon: the socket of a daemon that takes another's place stays when that one ends, and one of the two answers
// at any time.
func TestNextDaemon(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	cfg, _, _ := configAt(path)
	ctx, cancel := context.WithCancel(t.Context())
	before := Start(ctx, cfg, false)
	failed := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		defer close(failed)
		for c := NewClient(path); ; {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := c.Status(t.Context()); errors.Is(err, ErrNoDaemon) {
				failed <- err
				return
			}
		}
	}()
	for range 5 {
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		next := Start(ctx, cfg, true)
		before.Stop(true)
		before = next
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Error(err)
	}
	cancel()
	before.Stop(false)
	if err := RemoveDead(path); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestRemoveDead: only a socket at which nobody listens goes.
func TestRemoveDead(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	gone := func() bool { check(t, RemoveDead(path)); _, err := os.Lstat(path); return err != nil }
	if !gone() {
		t.Error("what is not there")
	}
	l := listenAt(t, path)
	if gone() {
		t.Error("a live socket is gone")
	}
	if l.Close(); !gone() {
		t.Error("a dead socket is left")
	}
	if check(t, os.WriteFile(path, nil, 0o600)); gone() {
		t.Error("a file is gone")
	}
}

// TestAwait: it returns as soon as the daemon is healthy, also one that starts meanwhile, else the last answer when time is up.
func TestAwait(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	if _, err := NewClient(path).Await(t.Context(), time.Nanosecond); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("without a daemon: %v", err)
	}
	cfg, _, _ := configAt(path)
	stop := time.AfterFunc(20*time.Millisecond, func() {
		s := start(t.Context(), cfg, false, 10*time.Millisecond)
		t.Cleanup(func() { s.Stop(false) })
	})
	defer stop.Stop()
	if d, err := NewClient(path).Await(t.Context(), 10*time.Second); err != nil || d.Verdict.State != status.Healthy {
		t.Errorf("%+v, %v", d.Verdict, err)
	}
	path = socketPath(t)
	cfg, _, _ = configAt(path)
	cfg.Routes = []Route{{Pattern: "GET /v1/status", Handler: JSON(func(*http.Request) any { return status.Report(status.Process{PID: 1}, false, nil) })}}
	s := start(t.Context(), cfg, false, 10*time.Millisecond)
	defer s.Stop(false)
	for _, patience := range []time.Duration{time.Second, time.Nanosecond} { // the first answer takes longer than that
		if d, err := NewClient(path).Await(t.Context(), patience); err != nil || d.Verdict.State == status.Healthy || d.Process.PID != 1 {
			t.Errorf("not ready: %+v, %v", d, err)
		}
	}
	path = socketPath(t) // of a process that is stopped: it takes connections and does not answer
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	if _, err := NewClient(path).Await(t.Context(), 10*time.Millisecond); !errors.Is(err, ErrAnswer) || time.Since(began) > answerTimeout/2 {
		t.Errorf("no answer: %v after %s", err, time.Since(began))
	}
}
