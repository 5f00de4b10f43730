package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
)

// TestReplaceByAnUnfit: a daemon that could not serve the network does not end the one that runs.
func TestReplaceByAnUnfit(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.setConfig(w.config(0, `,"GBP":true`))
	w.start()
	w.awaitReady()
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no such interface":     {func(c *Config) { c.Underlay.Iface = []string{"none0"} }, "choose underlay interface"},
		"no dataplane for that": {func(c *Config) { c.Mode = fit.Userspace }, "Backend.GBP"},
	} {
		cfg := w.cfg
		cfg.Replace = true
		c.change(&cfg)
		d := New(cfg)
		d.specs = w.specs
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		err := d.Run(ctx)
		if cancel(); !errors.As(err, new(*nodefile.RunningError)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: ended with %v, want %q", name, err, c.says)
		}
		if s, n := w.store(); n > 1 && s.closed.Load() != 1 {
			t.Errorf("%s: the store is left open", name)
		}
		if !w.daemon.Ready() {
			t.Fatalf("%s: the running daemon is not ready any more", name)
		}
	}
}

// nothingGiver gives nothing and goes on.
type nothingGiver struct{}

func (nothingGiver) Give(handover.Question) (handover.Legacy, error) { return handover.Legacy{}, nil }
func (nothingGiver) Given(error)                                     {}

// TestReplaceIsStopped: a daemon that waits for the end of the one before ends at once when it is told to.
func TestReplaceIsStopped(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.Replace = true
	w.setConfig(w.config(0, ""))
	processtest.Run(t, asHolder, w.cfg.SubnetFile)
	s := handover.Serve(handover.Path(w.cfg.SubnetFile), slog.New(slog.DiscardHandler), nothingGiver{}, func() bool { return true })
	defer s.Stop()
	w.start()
	w.await("answered", func() bool { return w.log.count("taking the place of the running overlayd") == 1 })
	told := time.Now()
	w.cancel()
	if err := w.ended(); err != nil || time.Since(told) > roomForReplacing/2 {
		t.Errorf("ended after %s with %v", time.Since(told), err)
	}
	if s, _ := w.store(); s.closed.Load() != 1 {
		t.Error("the store is left open")
	}
}

// lastGiver ends when it is asked, and does not say so.
type lastGiver struct{ end func() }

func (g lastGiver) Give(handover.Question) (handover.Legacy, error) {
	g.end()
	return handover.Legacy{}, errors.New("it cannot be asked now")
}
func (lastGiver) Given(error) {}

// TestReplaceOneThatEnds: a daemon that was to take the place of one that is killed, or stopped, just then runs without what that had.
func TestReplaceOneThatEnds(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.Replace = true
	w.setConfig(w.config(0, ""))
	_, end := processtest.Run(t, asHolder, w.cfg.SubnetFile)
	s := handover.Serve(handover.Path(w.cfg.SubnetFile), slog.New(slog.DiscardHandler), lastGiver{end}, func() bool { return true })
	defer s.Stop()
	w.start()
	w.awaitReady()
}

// TestStartBesideOneThatEnds: a daemon that is started right after another one was killed waits for the end of that one.
func TestStartBesideOneThatEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, end := processtest.Run(t, asHolder, w.cfg.SubnetFile)
	time.AfterFunc(50*time.Millisecond, end)
	n := New(w.cfg).newNetwork("")
	if err := n.claimOrReplace(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.release()
}

// TestGiveBesideSync: a daemon whose Sync takes its time refuses to make room and goes on; afterwards it makes room.
func TestGiveBesideSync(t *testing.T) {
	t.Parallel()
	w := userspaceWorld(t)
	g := &giver{daemon: w.daemon, patience: 10 * time.Millisecond}
	o := w.daemon.expects.forwarding()[0].overlay
	w.await("held", o.TryHold)
	_, err := g.Give(handover.Question{})
	o.LetGo()
	if _, closes := w.forward().seen(); !errors.Is(err, errBusy) || closes > 0 || !w.daemon.Ready() {
		t.Errorf("gave with %v, closed %d times, ready %v", err, closes, w.daemon.Ready())
	}
	_, err = g.Give(handover.Question{})
	if _, closes := w.forward().seen(); err != nil || closes == 0 {
		t.Errorf("gave with %v, closed %d times", err, closes)
	}
	g.Given(nil)
	if err := w.ended(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestHandOverAtTheEnd: a daemon that has been told to end while it waits for a Sync hands over nothing.
func TestHandOverAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*Daemon) error{
		"to another daemon": func(d *Daemon) error {
			g := &giver{daemon: d, patience: time.Minute}
			l, err := g.Give(handover.Question{All: true})
			g.Given(nil)
			return errors.Join(err, map[bool]error{true: fmt.Errorf("gave %v", l)}[len(l.Exports)+len(l.Leases) > 0])
		},
		"to the kernel": func(d *Daemon) error {
			if err := d.StopToKernel(); !errors.Is(err, errEnding) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := userspaceWorld(t)
			o := w.daemon.expects.forwarding()[0].overlay
			w.await("held", o.TryHold)
			answered := make(chan error, 1)
			go func() { answered <- ask(w.daemon) }()
			w.cancel()
			select {
			case err := <-answered:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(15 * time.Second):
				t.Error("still waiting for the Sync")
			}
			o.LetGo()
			if err := w.ended(); err != nil {
				t.Errorf("ended with %v", err)
			}
			if _, closes := w.forward().seen(); closes != 1 {
				t.Errorf("closed %d times", closes)
			}
		})
	}
}

// userspaceWorld is readyWorld with a dataplane that passes for the userspace one.
func userspaceWorld(t *testing.T) *world {
	t.Helper()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.Mode = fit.Userspace
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	return w
}
