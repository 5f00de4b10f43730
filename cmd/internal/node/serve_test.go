package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
)

// lister is a list of networks that a test writes.
type lister struct {
	names  chan []string
	closed int
	watch  chan struct{} // closed when Networks has ended
}

func newLister() *lister { return &lister{names: make(chan []string), watch: make(chan struct{})} }

func (l *lister) Networks(ctx context.Context) <-chan []string {
	out := make(chan []string)
	go func() {
		defer close(l.watch)
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case all, ok := <-l.names:
				if !ok {
					return
				}
				select {
				case out <- all:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (l *lister) Close() error { l.closed++; return nil }

// several makes a world's daemon serve the networks of a list.
func (w *world) several() *lister {
	l := newLister()
	w.cfg.OpenNetworks = func(context.Context) (NetworkLister, error) { return l, nil }
	return l
}

func (w *world) names() string { return names(w.daemon.Status()) }

// TestNetworksComeAndGo: the daemon serves those that are listed and wanted, and forgets those that
// have gone.
func TestNetworksComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.several()
		w.cfg.Networks = []string{"red", "blue"}
		w.cfg.OpenStore = func(context.Context, string, *slog.Logger) (control.Store, error) { return nil, errDown }
		w.start()
		synctest.Wait()
		if w.daemon.Ready() || w.names() != "" || len(w.told()) > 0 {
			t.Errorf("before the list: ready %v, %q, told %q", w.daemon.Ready(), w.names(), w.told())
		}
		for _, c := range []struct {
			list  []string
			want  string
			ready bool
		}{
			{nil, "", true},
			{[]string{"green"}, "", true},
			{[]string{"green", "red"}, "red", false},
			{[]string{"blue", "red"}, "blue red", false},
			{[]string{"blue"}, "blue", false},
			{[]string{"red"}, "red", false},
			{nil, "", true},
		} {
			l.names <- c.list
			synctest.Wait()
			if w.names() != c.want || w.daemon.Ready() != c.ready {
				t.Errorf("list %q: serving %q, ready %v; want %q, %v", c.list, w.names(), w.daemon.Ready(), c.want, c.ready)
			}
		}
		if got := w.told(); len(got) == 0 || got[0] != "READY=1" {
			t.Errorf("a daemon without a network told the service manager %q", got)
		}
		if gone := w.log.count("network has gone"); gone != 3 {
			t.Errorf("%d networks have gone, want three", gone)
		}
		w.cancel()
		if err := w.ended(); err != nil {
			t.Error(err)
		}
		<-l.watch
		if l.closed != 1 {
			t.Errorf("the list was closed %d times", l.closed)
		}
	})
}

// TestNetworkIsTriedAgain: one that cannot be served is tried less and less often, until it can,
// has gone, or the daemon ends. The other networks do not wait for it.
func TestNetworkIsTriedAgain(t *testing.T) {
	for name, end := range map[string]func(*world, *lister){
		"it has gone":         func(_ *world, l *lister) { l.names <- nil },
		"the daemon ends":     func(w *world, _ *lister) { w.cancel() },
		"the daemon drains":   func(w *world, _ *lister) { w.daemon.Drain() },
		"the list has closed": func(w *world, l *lister) { close(l.names); w.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := w.several()
				tries := map[string][]time.Time{}
				w.cfg.OpenStore = func(_ context.Context, network string, _ *slog.Logger) (control.Store, error) {
					w.locked(func() { tries[network] = append(tries[network], time.Now()) })
					return nil, fmt.Errorf("store of %s: %w", network, errDown)
				}
				w.start()
				l.names <- []string{"red", "blue"}
				time.Sleep(5 * time.Minute)
				for _, network := range []string{"red", "blue"} {
					var gaps []time.Duration
					w.locked(func() {
						for i, at := range tries[network][1:] {
							gaps = append(gaps, at.Sub(tries[network][i]))
						}
					})
					if n := len(gaps); n < 12 || n > 20 || gaps[0] > time.Second || gaps[n-1] < 22*time.Second || slices.Max(gaps) > 38*time.Second {
						t.Errorf("%s: tried after %v", network, gaps)
					}
				}
				if w.log.count("network=red err=\"store of red: down\" after=") == 0 {
					t.Errorf("the log does not name the network:\n%s", w.log.text())
				}
				end(w, l)
				synctest.Wait()
				if got := w.names(); got != "" {
					t.Errorf("still serving %q", got)
				}
			})
		})
	}
}

// TestNetworkThatGoes: it takes its subnet file with it and leaves its lease, and the other network
// goes on as if nothing had happened.
func TestNetworkThatGoes(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	l := w.several()
	w.memory("red").SetConfig(nil, []byte(w.config(0, "")))
	w.memory("blue").SetConfig(nil, []byte(strings.Replace(w.config(1, ""), "10.5.", "10.6.", 1)))
	w.start()
	l.names <- []string{"red", "blue"}
	w.await("ready", func() bool { return w.names() == "blue red" && w.daemon.Ready() })
	red, blue := filepath.Join(w.cfg.SubnetDir, "red.env"), filepath.Join(w.cfg.SubnetDir, "blue.env")
	if got := nodefile.SubnetFilesIn(w.cfg.SubnetDir); !slices.Equal(got, []string{blue, red}) {
		t.Errorf("subnet files %q", got)
	}
	began := w.daemon.Status()[0].SessionStart
	l.names <- []string{"blue"}
	w.await("alone", func() bool { return w.names() == "blue" })
	if _, err := os.Stat(red); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", red, err)
	}
	if _, err := os.Stat(blue); err != nil || !w.daemon.Ready() || w.daemon.Status()[0].SessionStart != began {
		t.Errorf("blue: %v, %+v", err, w.daemon.Status()[0])
	}
	if len(w.memory("red").Keys(nil)) != 1 {
		t.Error("the lease of the network that has gone does not stay")
	}
	l.names <- []string{"blue", "red"}
	w.await("both again", func() bool { return w.names() == "blue red" && w.daemon.Ready() })
	if w.log.count("removed what the last network config left") != 1 {
		t.Error("what the network had left was not removed")
	}
}

// TestNetworksThatOverlap: the one that comes second is not served, and its status says why, until
// the first has gone.
func TestNetworksThatOverlap(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	l := w.several()
	w.memory("red").SetConfig(nil, []byte(w.config(0, "")))
	w.memory("blue").SetConfig(nil, []byte(w.config(1, "")))
	w.start()
	l.names <- []string{"red"}
	w.await("ready", func() bool { return w.names() == "red" && w.daemon.Ready() })
	l.names <- []string{"red", "blue"}
	w.await("refused", func() bool {
		all := w.daemon.Status()
		return len(all) == 2 && strings.Contains(all[0].Err, "overlaps 10.5.0.0/16 of network red")
	})
	if w.daemon.Ready() || !w.daemon.Status()[1].Ready {
		t.Errorf("status %+v", w.daemon.Status())
	}
	l.names <- []string{"blue"}
	w.await("served", func() bool { return w.names() == "blue" && w.daemon.Ready() })
}

// server stands for a process that a daemon runs.
type server struct {
	refuse  error // of Stop
	stopped int
}

func (s *server) Status() status.Server { return status.Server{Starts: 1, Err: "down"} }
func (s *server) Stop() error           { s.stopped++; return s.refuse }

// TestEmbeddedEtcd: the daemon starts it before a store, serves whatever becomes of it, says how it is, and stops
// it last.
func TestEmbeddedEtcd(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for _, refuse := range []error{nil, errDown} {
		w := newWorld(t)
		s := &server{refuse: refuse}
		started := false
		w.cfg.StartEtcd = func(context.Context) Server { started = true; return s }
		open := w.cfg.OpenStore
		w.cfg.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
			if !started {
				t.Error("the store is opened before etcd runs")
			}
			return open(ctx, network, log)
		}
		w.setConfig(w.config(0, ""))
		w.start()
		w.awaitReady()
		if st := w.daemon.Status(); len(st) != 1 || st[0].Etcd == nil || st[0].Etcd.Err != "down" {
			t.Errorf("status %+v", st)
		}
		if s.stopped > 0 {
			t.Error("stopped too early")
		}
		w.cancel()
		if err := w.ended(); err != nil || s.stopped != 1 {
			t.Errorf("ended with %v, stopped %d times", err, s.stopped)
		}
		if n := w.log.count("embedded etcd did not stop cleanly"); (n == 1) != (refuse != nil) {
			t.Errorf("log:\n%s", w.log.text())
		}
	}
}

// TestHealth: the endpoint tells whether the daemon is ready, from before the store is asked until
// the end; the daemon ends if it cannot be opened, or dies.
func TestHealth(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Endpoints = []Endpoint{{Listen: func() (net.Listener, error) { return l, nil }, Handler: func(d *Daemon) http.Handler {
		return status.Handler(d.Ready, d.Checks)
	}}}
	w.start()
	get := func(path string) string {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	if got := get("/readyz"); got != "503 overlayd is not ready yet\n" {
		t.Errorf("before there is a config: %s", got)
	}
	w.setConfig(w.config(0, ""))
	w.awaitReady()
	for path, want := range map[string]string{"/readyz": "200 overlayd is ready\n", "/livez": "200 overlayd is running\n"} {
		if got := get(path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	l.Close()
	if err := w.ended(); !errors.Is(err, errEndpointDied) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the death of the endpoint: %v", err)
	}
}

// TestRefusedStart: what is wrong at the start is reported before anything else is begun.
func TestRefusedStart(t *testing.T) {
	for _, name := range []string{"endpoint", "subnet file"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var begun []string
			w.cfg.Endpoints = []Endpoint{{Listen: func() (net.Listener, error) { begun = append(begun, "endpoint"); return nil, errDown }}}
			w.cfg.StartEtcd = func(context.Context) Server { begun = append(begun, "etcd"); return nil }
			w.cfg.OpenStore = func(context.Context, string, *slog.Logger) (control.Store, error) {
				begun = append(begun, "store")
				return nil, errDown
			}
			want := []string{"endpoint"}
			if name == "subnet file" {
				processtest.Run(t, asHolder, w.cfg.SubnetFile)
				want = nil
			}
			w.start()
			err := w.ended()
			if running := errors.As(err, new(*nodefile.RunningError)); running != (name == "subnet file") || !running && !errors.Is(err, errDown) {
				t.Errorf("ended with %v", err)
			}
			if !slices.Equal(begun, want) {
				t.Errorf("begun %q, want %q", begun, want)
			}
			if name != "subnet file" {
				if n, err := nodefile.Claim(w.cfg.SubnetFile); err != nil {
					t.Errorf("the claim is left: %v", err)
				} else {
					n.Release()
				}
			}
		})
	}
}
