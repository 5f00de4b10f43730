package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestMain makes the test program what compare is in the hosts that it makes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		if err := dispatch(os.Args[1:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newTestRun(t *testing.T, only string) (*run, *bytes.Buffer) {
	t.Helper()
	netnstest.RequireRoot(t)
	out := new(bytes.Buffer)
	o := options{rounds: 1, budget: time.Second, only: regexp.MustCompile(only)}
	return &run{options: o, out: out, dir: t.TempDir(), start: time.Now()}, out
}

// TestRunMeasuresEveryFigure runs what needs no other program, on both underlays, and says of the rest that it is missing.
func TestRunMeasuresEveryFigure(t *testing.T) {
	r, out := newTestRun(t, "/(veth|flanneld)")
	bin := t.TempDir()
	for _, name := range []string{"ip", "ethtool"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	list := candidates("/nonexistent/overlayd", kernelVersion(), []tier{{}})
	rep, err := r.all(t.Context(), list)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(rep.Underlays) != 2 {
		t.Fatalf("%d underlays, want 2\n%s", len(rep.Underlays), out)
	}
	if len(rep.Memory) != 3 {
		t.Errorf("%d rows of flanneld's memory, want 3", len(rep.Memory))
	}
	for _, m := range rep.Memory {
		if m.Missing != "no flanneld on this machine" {
			t.Errorf("%s: missing because of %q", m.Name, m.Missing)
		}
	}
	for _, u := range rep.Underlays {
		if len(u.Rows) < 2 {
			t.Errorf("%s: %d rows, want veth and vxlan\n%s", u.Name, len(u.Rows), out)
		}
		for _, row := range u.Rows {
			for _, e := range row.Errors {
				t.Errorf("%s: %s: %s", u.Name, row.Name, e)
			}
			for _, g := range groups() {
				for _, m := range g.metrics {
					s := row.Metrics[m.key]
					// CPU time is counted in ticks of 10 ms: a short transfer may see none.
					cpu := g.title == groups()[2].title
					if len(s.Values) != 1 || (s.Min <= 0 && !cpu) {
						t.Errorf("%s: %s: %s is %+v", u.Name, row.Name, m.key, s)
					}
				}
			}
		}
	}
}

// TestRunEndsWithItsContext: Ctrl-C ends a run at once, and its hosts.
func TestRunEndsWithItsContext(t *testing.T) {
	r, out := newTestRun(t, "default/veth")
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	list := candidates("/nonexistent/overlayd", kernelVersion(), []tier{{}})
	list[0].setup = func(ctx context.Context, p *pair) error {
		cancel(stop)
		return setupVeth(ctx, p)
	}
	if _, err := r.all(ctx, list); !errors.Is(err, stop) {
		t.Fatalf("got %v, want %v\n%s", err, stop, out)
	}
}

// cancelAt is a writer that calls cancel when text is written.
type cancelAt struct {
	text   string
	cancel func()
}

func (c cancelAt) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.text)) {
		c.cancel()
	}
	return len(b), nil
}

// TestRunEndsJustAfterASetup: hosts that are up but not measured yet end too.
func TestRunEndsJustAfterASetup(t *testing.T) {
	r, _ := newTestRun(t, "default/veth")
	ctx, cancel := context.WithCancel(t.Context())
	r.out = cancelAt{"veth is up", cancel}
	list := candidates("/nonexistent/overlayd", kernelVersion(), []tier{{}})[:1]
	var made *pair
	list[0].setup = func(ctx context.Context, p *pair) error {
		made = p
		return setupVeth(ctx, p)
	}
	if _, err := r.all(ctx, list); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	for _, h := range made.hosts() {
		if h.agent.ProcessState == nil {
			t.Errorf("host %s has not ended", h.name)
		}
	}
}

// TestSetupThatFailsIsMissing: the others are measured all the same.
func TestSetupThatFailsIsMissing(t *testing.T) {
	r, out := newTestRun(t, "default/veth")
	list := candidates("/nonexistent/overlayd", kernelVersion(), []tier{{}})
	list[0].setup = func(ctx context.Context, p *pair) error {
		if err := p.a.start(ctx, nil, "sh", "-c", "echo out of order; exit 3"); err != nil {
			return err
		}
		return p.a.awaitFile(ctx, "/nonexistent/file")
	}
	rep, err := r.all(t.Context(), list)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if rows := rep.Underlays[0].Rows; len(rows) != 1 || rows[0].Name != reference {
		t.Errorf("got rows %+v, want the reference", rows)
	}
	if got := rep.Programs[0].Missing; !regexp.MustCompile(`(?s)sh has ended: exit status 3.*out of order`).MatchString(got) {
		t.Errorf("missing because of %q, want state and log of the daemon", got)
	}
}
