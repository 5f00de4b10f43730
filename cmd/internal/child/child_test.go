package child

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// asParent makes this program a daemon with a child.
const asParent = "OVERLAYD_TEST_PARENT"

// The test binary is the child too: its first argument says what that does.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		err := Serve(context.Background(), false, children[os.Args[2]])
		if err != nil {
			fmt.Fprintln(os.Stderr, "overlayd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(asParent) != "" {
		os.Exit(parent())
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector's second at exit is not the child's
	goleak.VerifyTestMain(m)
}

// children are what children do.
var children = map[string]func(context.Context, *Parent) error{
	"serves": func(ctx context.Context, p *Parent) error { p.Ready(); <-ctx.Done(); return nil },
	"fails": func(_ context.Context, p *Parent) error {
		p.Failed(&Error{"full", "no room"})
		return errors.New("no room")
	},
	"refuses": func(context.Context, *Parent) error { return errors.New("no such thing") },
	"panics":  func(_ context.Context, p *Parent) error { p.Ready(); go panic("a damaged page"); select {} },
	"faults":  func(ctx context.Context, _ *Parent) error { var none func(context.Context) error; return none(ctx) },
	"waits": func(ctx context.Context, p *Parent) error {
		p.Log.Info("waits", "by", os.Getpid())
		<-ctx.Done()
		return nil
	},
	"hangs": func(_ context.Context, p *Parent) error { p.Ready(); return forever() },
	"holds": func(_ context.Context, p *Parent) error {
		holder := exec.Command("sleep", "60")
		holder.Stdout = os.Stdout
		if err := holder.Start(); err != nil {
			return err
		}
		p.Log.Info("held", "by", holder.Process.Pid)
		p.Ready()
		return forever()
	},
	"counts": func(_ context.Context, p *Parent) error {
		p.Refused(2)
		p.Refused(5)
		return errors.New("over")
	},
	"talks": func(ctx context.Context, p *Parent) error {
		for range 100 {
			p.Log.Warn("slow", "ms", 7, "k", "a b", "more", []int{1}, "event", "ready")
		}
		p.Log.Debug("unseen")
		p.Log.Warn(strings.Repeat("x", 3*maxLine))
		fmt.Println("no record")
		p.Log.Info("last")
		p.Ready()
		<-ctx.Done()
		return nil
	},
}

// run starts a child that does one of children, and later the next.
func run(t *testing.T, does ...string) (*Process, *netnstest.Log) { return runLate(t, 0, does...) }

// runLate is run with that Config.late.
func runLate(t *testing.T, late time.Duration, does ...string) (*Process, *netnstest.Log) {
	log := new(netnstest.Log)
	n := 0
	p := Start(Config{
		Name: "part",
		late: late,
		Args: func(*Error, int) []string { n++; return []string{"child", does[min(n, len(does))-1]} },
		Log:  slog.New(slog.NewTextHandler(log, nil)),
		Fix: func(err error) string {
			if e := new(Error); errors.As(err, &e) && e.Reason == "full" {
				return "make room"
			}
			return ""
		},
	})
	stop := sync.OnceFunc(func() { p.Stop() })
	t.Cleanup(stop)
	return p, log
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A child that ends is named once with why and the remedy, and another one is started until it works.
func TestStartedAgain(t *testing.T) {
	for does, want := range map[string][]string{
		"fails":   {`err="no room"`, `fix="make room"`},
		"refuses": {`err="overlayd: no such thing"`},
		"panics":  {`err="panic: a damaged page`},
		"faults":  {`err="panic: runtime error: invalid memory address`},
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			p, log := run(t, does, does, does, "serves")
			<-p.First()
			eventually(t, "a child that works", func() bool { s := p.Status(); return s.Running && s.Starts == 4 })
			if s := p.Status(); s.Err != "" || s.Since.IsZero() {
				t.Errorf("status %+v", s)
			}
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
			text := log.String()
			for _, w := range append(want, "level=ERROR", "part runs") {
				if !strings.Contains(text, w) {
					t.Errorf("the log lacks %s:\n%s", w, text)
				}
			}
			if n := strings.Count(text, "does not run"); n != 1 {
				t.Errorf("reported %d times:\n%s", n, text)
			}
		})
	}
}

// TestLongGap: one reason is logged once in a while, but no long time without a child goes without a line.
func TestLongGap(t *testing.T) {
	log := new(netnstest.Log)
	p := &Process{cfg: Config{Name: "part", Log: slog.New(slog.NewTextHandler(log, nil)), Fix: func(error) string { return "" }}, first: make(chan struct{})}
	full := &Error{"full", "no room"}
	for i, step := range []struct {
		do           func()
		failed, runs int // lines so far
	}{
		{func() { p.failed(full) }, 1, 0},
		{func() { p.ready(1) }, 1, 1},
		{func() { p.failed(full) }, 1, 1},
		{func() { p.ready(1) }, 1, 1},
		{func() { p.failed(full) }, 1, 1},
		{func() { p.status.Since = p.status.Since.Add(-longGap); p.failed(full) }, 2, 1},
		{func() { p.failed(full) }, 2, 1},
		{func() { p.ready(1) }, 2, 2},
	} {
		step.do()
		if failed, runs := strings.Count(log.String(), "does not run"), strings.Count(log.String(), "part runs"); failed != step.failed || runs != step.runs {
			t.Errorf("step %d: %d and %d lines, want %d and %d:\n%s", i, failed, runs, step.failed, step.runs, log)
		}
	}
}

// A child that is killed is replaced within a second.
func TestKilled(t *testing.T) {
	p, _ := run(t, "serves")
	<-p.First()
	for range 3 {
		starts := p.Status().Starts
		unix.Kill(p.Status().PID, unix.SIGKILL)
		began := time.Now()
		eventually(t, "another child", func() bool { s := p.Status(); return s.Running && s.Starts > starts })
		t.Logf("after %s", time.Since(began))
	}
}

// What the child logs comes once for each text, with its attributes, and long lines are no obstacle.
func TestLog(t *testing.T) {
	p, log := run(t, "talks")
	<-p.First()
	p.Stop()
	text := log.String()
	if n := strings.Count(text, `level=WARN msg=slow ms=7 k="a b" more=[1] event=ready`); n != 1 {
		t.Errorf("%d times:\n%s", n, text)
	}
	for want, n := range map[string]int{"msg=last": 1, "unseen": 0, `msg="part printed" line="{`: 1, "no record": 0, "part runs": 1} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%s: %d times, want %d:\n%.2000s", want, got, n, text)
		}
	}
}

// Clients that were refused are counted over all children.
func TestRefused(t *testing.T) {
	p, log := run(t, "counts")
	for end := time.Now().Add(20 * time.Second); p.Status().Starts < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(log.String())
		}
	}
	p.Stop()
	if s := p.Status(); s.Refused < 5*(s.Starts-1) || s.Refused > 5*s.Starts {
		t.Errorf("%+v", s)
	}
}

// Signals to all processes of the daemon leave the child alone; Stop ends it, or else kills it.
func TestStop(t *testing.T) {
	p, log := run(t, "serves")
	<-p.First()
	pid := p.Status().PID
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		unix.Kill(pid, sig)
	}
	time.Sleep(50 * time.Millisecond) // for one that does end it
	if s := p.Status(); !s.Running || s.Starts != 1 {
		t.Errorf("status %+v:\n%s", s, log.String())
	}
	began := time.Now()
	if err := p.Stop(); err != nil || time.Since(began) > time.Second {
		t.Errorf("stopped after %s: %v", time.Since(began), err)
	}
	p, _ = run(t, "hangs")
	<-p.First()
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("one that hangs: %v", err)
	}
}

// A child that does not end although it is killed, such as while its disk is frozen, does not keep the daemon from ending. Here its
// output is held open instead.
func TestStopDoesNotWaitForTheKernel(t *testing.T) {
	p, log := run(t, "holds")
	<-p.First()
	var holder int
	eventually(t, "the holder of the output is known", func() bool {
		_, by, _ := strings.Cut(log.String(), "by=")
		n, _ := fmt.Sscan(by, &holder)
		return n == 1
	})
	defer unix.Kill(holder, unix.SIGKILL)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop() }()
	select {
	case err := <-stopped:
		if err == nil || !strings.Contains(err.Error(), "still runs") {
			t.Errorf("%v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Stop waits for a process that is killed and does not end")
	}
}

// forever does not return. Go ends a process of which every goroutine waits for nothing: so this waits for a time.
func forever() error {
	for {
		time.Sleep(time.Hour)
	}
}

// parent runs a child until it is killed.
func parent() int {
	p := Start(Config{Name: "part", Args: func(*Error, int) []string { return []string{"child", "serves"} },
		Log: slog.New(slog.DiscardHandler), Fix: func(error) string { return "" }})
	<-p.First()
	fmt.Println(p.Status().PID)
	select {}
}

// When somebody kills the daemon, the child ends.
func TestEndsWithTheDaemon(t *testing.T) {
	var daemon *exec.Cmd
	line, _ := processtest.Run(t, asParent, "1", func(c *exec.Cmd) { daemon = c })
	daemon.Process.Kill()
	eventually(t, "the child ends", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", line, "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// Whoever has no daemon is told so.
func TestNeedsADaemon(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "child", "serves")
	if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), ErrNoParent.Error()) {
		t.Errorf("%s", out)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=1", "OVERLAYD_ETCD_PASSWORD=x", "FLANNELD_ETCD_PASSWORD=x", "NOTIFY_SOCKET=y", "B=PASSWORD"})
	if fmt.Sprint(got) != "[A=1 B=PASSWORD]" {
		t.Errorf("got %q", got)
	}
}

// TestCrashError: a child that got no memory or no thread says nothing about what it reads.
func TestCrashError(t *testing.T) {
	for text, want := range map[string]string{
		"panic: a damaged page":                             ReasonCrash,
		"fatal error: fault":                                ReasonCrash,
		"unexpected fault address 0x7f00":                   ReasonCrash,
		"fatal error: newosproc":                            ReasonLimits,
		"fatal error: runtime: out of memory":               ReasonLimits,
		"fatal error: runtime: cannot allocate memory":      ReasonLimits,
		"fatal error: out of memory (stackalloc)":           ReasonLimits,
		"overlayd: data directory: permission denied":       "",
		"fatal error: all goroutines are asleep - deadlock": ReasonCrash,
	} {
		if got := crashError(text); got.Reason != want || got.Text != text {
			t.Errorf("%q: %+v, want reason %q", text, got, want)
		}
		p := &Process{cfg: Config{Crash: "damaged"}}
		if err := p.why(t.Context(), nil, text, nil); strings.HasPrefix(err.Error(), "damaged: ") != (want == ReasonCrash) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
