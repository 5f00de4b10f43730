package handover

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// fakeGiver gives pipes, or refuses. It stands for a daemon.
type fakeGiver struct {
	files  int
	refuse error
	takes  time.Duration // to give
	asked  chan struct{} // if it is not nil, closed by Give at first

	mu    sync.Mutex
	outs  []*os.File // the pipes' other ends
	given chan error // what Given was told
}

func (g *fakeGiver) Give(Question) (l Legacy, err error) {
	if g.asked != nil {
		close(g.asked)
	}
	time.Sleep(g.takes)
	if g.refuse != nil {
		return l, g.refuse
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.files {
		in, out, err := os.Pipe()
		if err != nil {
			return l, err
		}
		g.outs = append(g.outs, out)
		l.Exports = append(l.Exports, carrier.Export{Name: "pipe", Flags: uint64(i), Version: carrier.ExportVersion, File: in})
	}
	return l, nil
}

func (g *fakeGiver) Given(err error) { g.given <- err }

// askFor asks for everything, and returns the files.
func askFor(path string) ([]carrier.Export, error) {
	l, err := Ask(path, Question{})
	if err != nil {
		return nil, err
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	l.Wait(now)
	return l.Exports, nil
}

// served runs a server for g.
func served(t *testing.T, g *fakeGiver) (path string, log *bytes.Buffer, stop func()) {
	t.Helper()
	g.given = make(chan error, 1)
	path, log = filepath.Join(t.TempDir(), "socket"), new(bytes.Buffer)
	s := Serve(path, slog.New(slog.NewTextHandler(log, nil)), g, owned)
	stop = sync.OnceFunc(s.Stop)
	t.Cleanup(stop)
	return path, log, stop
}

// TestFilesArrive: each file arrives with its name and flags, in order, and is open.
func TestFilesArrive(t *testing.T) {
	for _, files := range []int{0, 1, 24} {
		g := &fakeGiver{files: files}
		path, log, stop := served(t, g)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket %v, %v, want mode 0600", info, err)
		}
		got, err := askFor(path)
		if err != nil || len(got) != files {
			t.Fatalf("got %v, %v, want %d files", got, err, files)
		}
		if err := <-g.given; err != nil {
			t.Errorf("given: %v", err)
		}
		for i, e := range got {
			b := make([]byte, 1)
			g.outs[i].Write([]byte{byte(i)})
			if _, err := e.File.Read(b); err != nil || int(b[0]) != i || e.Name != "pipe" || e.Flags != uint64(i) || e.Version != carrier.ExportVersion {
				t.Errorf("file %d: read %d, %v, %+v", i, b, err, e)
			}
			e.File.Close()
			g.outs[i].Close()
		}
		if stop(); log.Len() > 0 {
			t.Errorf("logged %s", log)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the stop: %v", err)
		}
	}
}

// TestNotGiven: a daemon that refuses says why, and answers the next question.
func TestNotGiven(t *testing.T) {
	g := &fakeGiver{refuse: errors.New("no room")}
	path, log, stop := served(t, g)
	for range 2 {
		if _, err := askFor(path); err == nil || err.Error() != "no room" {
			t.Errorf("got %v", err)
		}
	}
	for _, question := range []string{"", "x", `{"version":2}`} {
		c, err := net.Dial("unixpacket", path)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte(question))
		if question == "" { // who says nothing and goes
			c.Close()
			continue
		}
		b := make([]byte, 1000)
		if n, err := c.Read(b); err != nil || !strings.Contains(string(b[:n]), `"error"`) {
			t.Errorf("question %q: %s, %v", question, b[:n], err)
		}
		c.Close()
	}
	stop()
	if n := strings.Count(log.String(), "level=WARN"); n != 5 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	if len(g.given) > 0 {
		t.Error("the daemon has ended")
	}
}

// TestSlowGiver: the answer arrives although it took the daemon longer to make room than it waits for the other one.
func TestSlowGiver(t *testing.T) {
	t.Parallel()
	g := &fakeGiver{takes: 600 * time.Millisecond, given: make(chan error, 1)}
	path := filepath.Join(t.TempDir(), "socket")
	s := serve(path, slog.New(slog.DiscardHandler), g, owned, g.takes/2, keepPeriod)
	defer s.Stop()
	if _, err := askFor(path); err != nil {
		t.Error(err)
	}
	if err := <-g.given; err != nil {
		t.Errorf("the daemon was told: %v", err)
	}
}

// owned says that the path is the daemon's.
func owned() bool { return true }

// TestSocketIsKept: a server makes its socket once the path is its, and again if somebody removes it. It never takes or removes what another daemon
// has put there by then.
func TestSocketIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var isOwner atomic.Bool
	refuse := errors.New("not now")
	s := serve(path, slog.New(slog.DiscardHandler), &fakeGiver{refuse: refuse}, isOwner.Load, patience, time.Millisecond)
	answers := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			_, err := Ask(path, Question{})
			if err != nil && err.Error() == refuse.Error() {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a socket before the path is the daemon's: %v", err)
	}
	isOwner.Store(true)
	answers("at first")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	answers("made again")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	answers("in the place of what is no socket")
	isOwner.Store(false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	another := serve(path, slog.New(slog.DiscardHandler), &fakeGiver{refuse: refuse}, owned, patience, time.Millisecond)
	answers("another daemon")
	s.Stop()
	answers("another daemon, after the end of the first")
	another.Stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the stop: %v", err)
	}
}

// TestStaleSocket: the socket of a daemon that was killed is replaced; nobody is asked there.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := askFor(path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	s := Serve(path, slog.New(slog.DiscardHandler), &fakeGiver{given: make(chan error, 1)}, owned)
	defer s.Stop()
	if got, err := askFor(path); err != nil || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

// asStranger makes this program ask at the socket that it names.
const asStranger = "OVERLAYD_TEST_ASK"

func TestMain(m *testing.M) {
	path := os.Getenv(asStranger)
	if path == "" {
		os.Exit(m.Run())
	}
	if _, err := askFor(path); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

// TestStrangersAreRefused: another user gets nothing, even from a socket that he may open, and root asks
// no stranger.
func TestStrangersAreRefused(t *testing.T) {
	netnstest.RequireRoot(t)
	dir, err := os.MkdirTemp("", "handover") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "ask"), program, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	g := &fakeGiver{files: 1, given: make(chan error, 1)}
	log := new(bytes.Buffer)
	path := filepath.Join(dir, "socket")
	s := Serve(path, slog.New(slog.NewTextHandler(log, nil)), g, owned)
	ask := func() string {
		cmd := exec.Command(filepath.Join(dir, "ask"))
		cmd.Env = append(slices.Clone(os.Environ()), asStranger+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Error("a stranger got an answer")
		}
		return string(out)
	}
	if out := ask(); !strings.Contains(out, "permission denied") {
		t.Errorf("the stranger was told %q", out)
	}
	os.Chmod(path, 0o666)
	ask()
	s.Stop()
	if !strings.Contains(log.String(), "uid 65534") || len(g.given) > 0 || len(g.outs) > 0 {
		t.Errorf("logged %q, gave %d files", log, len(g.outs))
	}
}

// TestBadAnswers: whatever a daemon says that does not fit, no file stays open.
func TestBadAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		files int
		want  string
	}{
		"no JSON":        {"x", 1, "read answer"},
		"too few files":  {`{"exports":[{"name":"a"},{"name":"b"}]}`, 1, "1 files came with 2 names"},
		"too many files": {`{"exports":[{"name":"a"}]}`, 2, "2 files came with 1 names"},
		"both":           {`{"error":"no","exports":[{"name":"a"}]}`, 1, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer c.Close()
				c.Read(make([]byte, 1000))
				c.WriteMsgUnix([]byte(test.text), syscall.UnixRights(slices.Repeat([]int{int(out.Fd())}, test.files)...), nil)
				out.Close()
			}()
			if _, err := askFor(path); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			in.SetReadDeadline(time.Now().Add(patience))
			if n, err := in.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the files are still open: %v", err)
			}
			in.Close()
		})
	}
}
