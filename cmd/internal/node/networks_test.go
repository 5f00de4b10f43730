package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// listed is a list of networks that the test sends.
type listed struct {
	names  chan []string
	closed bool
}

func (l *listed) Networks(ctx context.Context) <-chan []string {
	context.AfterFunc(ctx, func() { close(l.names) })
	return l.names
}

func (l *listed) Close() error { l.closed = true; return nil }

// brokenStores counts how often the store of each network is opened, in vain.
type brokenStores struct {
	mu     sync.Mutex
	opened map[string]int
}

func (b *brokenStores) open(_ context.Context, network string, _ *slog.Logger) (control.Store, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened[network]++
	return nil, errors.New("broken")
}

func (b *brokenStores) times(network string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened[network]
}

// await polls until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// TestServeNetworks: networks are served as they come and go, each tried again by itself if it fails;
// the list is closed when all have ended, by a drain or by the context.
func TestServeNetworks(t *testing.T) {
	for _, drain := range []bool{true, false} {
		t.Run(fmt.Sprint("drain ", drain), func(t *testing.T) {
			stores := &brokenStores{opened: map[string]int{}}
			list := &listed{names: make(chan []string)}
			var states []string
			var log bytes.Buffer // a handler writes one line at a time
			dir := t.TempDir()
			d := New(Config{
				Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetDir: dir, Networks: []string{"a", "b", "c"}, OpenStore: stores.open,
				OpenNetworks: func(context.Context) (NetworkLister, error) { return list, nil },
				Notify: func(state string) {
					if !strings.HasPrefix(state, "STATUS=") { // from a goroutine of its own
						states = append(states, state)
					}
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() { done <- d.Run(ctx) }()
			list.names <- []string{"other"}
			await(t, "ready without a network of interest", d.Ready)
			list.names <- []string{"a", "b", "other"}
			await(t, "a and b are tried again", func() bool { return stores.times("a") > 1 && stores.times("b") > 1 })
			if got := names(d.Status()); got != "a b" || d.Ready() {
				t.Errorf("networks %q, ready %v", got, d.Ready())
			}
			subnetFile := filepath.Join(dir, "b.env")
			if err := os.WriteFile(subnetFile, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			list.names <- []string{"a", "c"}
			await(t, "b has gone and c is served", func() bool { return names(d.Status()) == "a c" && stores.times("c") > 0 })
			list.names <- []string{"a", "b", "c"}
			before := stores.times("b")
			await(t, "b is served again", func() bool { return stores.times("b") > before })
			if drain {
				d.Drain()
			} else {
				cancel()
			}
			if err := <-done; err != nil || !list.closed || stores.times("other") > 0 {
				t.Errorf("ended with %v, list closed %v, other opened %d times", err, list.closed, stores.times("other"))
			}
			if got := fmt.Sprint(states); got != "[READY=1 STOPPING=1]" {
				t.Errorf("the service manager was told %s", got)
			}
			if got := names(d.Status()); got != "" {
				t.Errorf("networks %q are left", got)
			}
			if n := strings.Count(log.String(), "cannot serve network"); n > 4 { // b comes twice
				t.Errorf("%d lines about networks that are tried again and again:\n%s", n, &log)
			}
		})
	}
}

// TestExpectedFirst: no network begins before all others of the list are expected, so that a new one yields to one that this
// host has served.
func TestExpectedFirst(t *testing.T) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("net%d", i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var d *Daemon
	var opened, early atomic.Int32
	d = New(Config{
		Log: slog.New(slog.DiscardHandler), SubnetDir: t.TempDir(),
		OpenStore: func(context.Context, string, *slog.Logger) (control.Store, error) {
			if expected := len(d.expects.all()); expected < len(names) && ctx.Err() == nil {
				early.Add(1)
			}
			opened.Add(1)
			return nil, errors.New("broken")
		},
	})
	s := serving{daemon: d, running: map[string]*runningNetwork{}}
	s.update(ctx, names)
	await(t, "every network has begun", func() bool { return opened.Load() >= int32(len(names)) })
	cancel()
	s.group.Wait()
	if n := early.Load(); n > 0 {
		t.Errorf("%d times a network began before all others of the list were expected", n)
	}
}

// TestListThatCannotBeOpened: it ends the daemon.
func TestListThatCannotBeOpened(t *testing.T) {
	wrong := errors.New("wrong flag")
	d := New(Config{Log: slog.New(slog.DiscardHandler), OpenNetworks: func(context.Context) (NetworkLister, error) { return nil, wrong }})
	if err := d.Run(t.Context()); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
}
