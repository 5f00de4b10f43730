package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestDrainFromAnotherPIDNamespace: the daemon cannot be told there.
func TestDrainFromAnotherPIDNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	processtest.Run(t, asHolder, file)
	line, _ := processtest.Run(t, asDrainer, file, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	})
	if line != nodefile.ErrOtherPIDNamespace.Error() {
		t.Errorf("got %q", line)
	}
}

// refusing is a store whose first calls of Published fail: as many as times says.
type refusing struct {
	*fakeStore
	times *atomic.Int32
}

func (r refusing) Published(ctx context.Context, node control.Node) ([]control.Lease, error) {
	if r.times.Add(-1) >= 0 {
		return nil, errDown
	}
	return r.fakeStore.Published(ctx, node)
}

// TestDrainWithoutStore: a daemon that drains while its store is away, and has no session, gives the lease back once the store answers,
// or ends when it is told to.
func TestDrainWithoutStore(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for name, c := range map[string]struct {
		ready bool // a session was there
		times int32
		given bool
	}{
		"after a session":                 {true, 2, true},
		"before one":                      {false, 2, true},
		"after a session, told to stop":   {true, math.MaxInt32, false},
		"without a session, told to stop": {false, math.MaxInt32, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var times atomic.Int32
			w.cfg.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
				s, err := w.openStore(ctx, network, log)
				return refusing{s.(*fakeStore), &times}, err
			}
			own, other := w.lease("10.5.77.0/24", "192.0.2.1"), w.lease("10.5.78.0/24", "192.0.2.2")
			if err := os.WriteFile(w.cfg.SubnetFile, []byte("FLANNEL_SUBNET=10.5.77.1/24\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.ready {
				w.setConfig(w.config(0, ""))
			}
			w.start()
			if c.ready {
				w.awaitReady()
				w.locked(func() { w.refuse = errDown })
				w.forward().die <- errDown
				w.await("without a session", func() bool { return w.status().Err != "" })
			} else {
				w.await("waiting", func() bool { return w.log.count("waiting for the network config") > 0 })
			}
			times.Store(c.times)
			w.daemon.Drain()
			w.await("trying again", func() bool { return w.log.count("give lease back: trying again") > 0 })
			want := []string{other}
			if !c.given {
				want = []string{own, other}
				w.cancel()
			}
			if err := w.ended(); err != nil {
				t.Errorf("drained with %v", err)
			}
			if got := w.leases(); !slices.Equal(got, want) {
				t.Errorf("leases %q, want %q", got, want)
			}
			if _, err := os.Stat(w.cfg.SubnetFile); errors.Is(err, os.ErrNotExist) != c.given {
				t.Errorf("the subnet file: %v", err)
			}
		})
	}
}

// TestDrainOfDaemonBesideFlanneld: a daemon is not told to drain while a flanneld runs in its place: that has the same lease.
func TestDrainOfDaemonBesideFlanneld(t *testing.T) {
	t.Parallel()
	ns, file := netnstest.New(t), filepath.Join(t.TempDir(), "good.env")
	line, _ := processtest.Run(t, asDrained, file)
	if err := os.WriteFile(file, []byte("FLANNEL_SUBNET=10.5.1.1/24\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(other, []byte("FLANNEL_SUBNET=10.5.1.1/24\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	processtest.Flanneld(t, ns.Start, "-subnet-file", other)
	ns.Must(func() error {
		if _, err := Drain(t.Context(), Config{SubnetFile: file}); !errors.Is(err, leftovers.ErrFlanneldRuns) {
			t.Errorf("daemon %s: %v", line, err)
		}
		return nil
	})
	if _, held, err := nodefile.Holder(file); !held || err != nil {
		t.Errorf("the daemon has ended: %v", err)
	}
}

// leaseless is a store that refuses to give a lease.
type leaseless struct{ *fakeStore }

func (leaseless) Acquire(context.Context, control.Node, []dataplane.VTEP) (control.Lease, error) {
	return control.Lease{}, errDown
}

// TestDrainBeforeALease: a session that has no lease yet gives back that of the last run.
func TestDrainBeforeALease(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.lease("10.5.77.0/24", "192.0.2.1")
	other := w.lease("10.5.78.0/24", "192.0.2.2")
	w.setConfig(w.config(0, ""))
	w.cfg.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
		s, err := w.openStore(ctx, network, log)
		return leaseless{s.(*fakeStore)}, err
	}
	w.start()
	w.await("no lease", func() bool { return w.log.count("no lease: trying again") > 0 })
	w.daemon.Drain()
	if err := w.ended(); err != nil || !slices.Equal(w.leases(), []string{other}) || !nodefile.WasDrained(w.cfg.SubnetFile) {
		t.Errorf("drained with %v, leases %q", err, w.leases())
	}
}

// TestDrainOfWhatIsAnothers: a daemon ends without giving a lease back that is a flanneld's or another daemon's by now, and without an error:
// a service manager would start it again. Not parallel: tests beside it would see that flanneld.
func TestDrainOfWhatIsAnothers(t *testing.T) {
	needUnderlay(t)
	for name, c := range map[string]struct {
		ready bool
		alive string // the node that lives at this address
		says  error
	}{
		"a flanneld of this host":             {false, "", leftovers.ErrFlanneldRuns},
		"another daemon":                      {false, "another", ErrAliveElsewhere},
		"a flanneld, beside one with a lease": {true, "", leftovers.ErrFlanneldRuns},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if w.setConfig(w.config(0, "")); !c.ready {
				w.setConfig(`{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}`)
			}
			own := w.lease("10.5.1.0/24", "192.0.2.1")
			if err := os.WriteFile(w.cfg.SubnetFile, []byte("FLANNEL_SUBNET=10.5.1.1/24\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			w.cfg.OpenStore = func(ctx context.Context, network string, log *slog.Logger) (control.Store, error) {
				s, err := w.openStore(ctx, network, log)
				return &living{fakeStore: s.(*fakeStore), id: c.alive, host: "elsewhere"}, err
			}
			if c.alive == "" {
				processtest.Flanneld(t, (*exec.Cmd).Start, "-subnet-file", w.cfg.SubnetFile)
			}
			w.start()
			if c.ready {
				w.awaitReady()
			} else {
				w.await("waiting", func() bool { return w.log.count("waiting for the network config") > 0 })
			}
			w.daemon.Drain()
			if err := w.ended(); err != nil || nodefile.WasDrained(w.cfg.SubnetFile) || w.log.count(c.says.Error()) == 0 {
				t.Errorf("drained with %v, want %v in the log:\n%s", err, c.says, w.log.text())
			}
			if _, err := os.Stat(w.cfg.SubnetFile); err != nil || !slices.Equal(w.leases(), []string{own}) {
				t.Errorf("leases %q, the subnet file: %v", w.leases(), err)
			}
		})
	}
}

// TestDrainBetweenTries: a network of several whose dataplane cannot be opened gives back the lease of the last run, too.
func TestDrainBetweenTries(t *testing.T) {
	needUnderlay(t)
	w := newWorld(t)
	l := w.several()
	w.memory("red").SetConfig(nil, []byte(w.config(0, "")))
	lease := control.Lease{Subnet: mustPrefix("10.5.77.0/24"), PublicIP: mustAddr("192.0.2.1"), BackendType: "vxlan"}
	lease.Backend = control.VTEPData{VNI: w.vni, MAC: dataplane.MAC(lease.PublicIP, w.vni)}
	w.memory("red").PutLeased(nil, lease.Key(), lease.Value())
	w.locked(func() { w.refuse = errDown })
	w.start()
	l.names <- []string{"red"}
	w.await("trying again", func() bool { return w.log.count("cannot serve network: trying again") > 0 })
	w.daemon.Drain()
	if err, got := w.ended(), w.memory("red").Keys(nil); err != nil || len(got) > 0 {
		t.Errorf("drained with %v, and %q stays", err, got)
	}
}
