package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controltest"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// world is a daemon in this process with what it needs: stores in memory, a dataplane that carries
// nothing, and a link for the underlay.
type world struct {
	t       *testing.T
	cfg     Config
	vni     uint32 // of its own
	daemon  *Daemon
	log     logBuffer
	configs chan struct{} // the config is another one
	lingers chan struct{} // if not nil, MarkReady ends late: it says so, and waits for an answer
	cancel  context.CancelFunc
	done    chan error // what Run returned

	mu       sync.Mutex
	memories map[string]*controltest.Memory // by network
	stores   []*fakeStore                   // in the order of their opening
	opened   []*fakeForward                 // the same
	settles  time.Duration                  // of the guard of the last session
	held     chan struct{}                  // if not nil, whoever opens the dataplane waits until it is closed
	refuse   error                          // of whoever opens the dataplane
	states   []string                       // told to the service manager, but for
	verdict  string                         // the last STATUS=
	beats    int                            // and how often WATCHDOG=1 was told

	wrap func(*fakeForward) dataplane.Dataplane // nil: the fake is the dataplane; called with mu held
}

var errDown = errors.New("down")

var vnis atomic.Uint32 // that tests have taken

// readyWorld returns a daemon that runs, and is ready with the first config.
func readyWorld(t *testing.T) *world {
	t.Helper()
	needUnderlay(t)
	w := newWorld(t)
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	return w
}

// newWorld returns a daemon that does not run yet.
func newWorld(t *testing.T) *world {
	w := &world{t: t, vni: 100 + vnis.Add(10), configs: make(chan struct{}, 1), memories: map[string]*controltest.Memory{}}
	dir := t.TempDir()
	w.cfg = Config{
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Hostname: "host", Options: parts.Options{Mode: fit.Kernel},
		SubnetFile: filepath.Join(dir, "subnet.env"), SubnetDir: filepath.Join(dir, "networks"),
		OpenStore: w.openStore,
		Notify:    w.notified,
	}
	w.cfg.Underlay.Iface = []string{"under0"}
	return w
}

// notified is told what the service manager is.
func (w *world) notified(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	verdict, isVerdict := strings.CutPrefix(state, "STATUS=")
	switch {
	case isVerdict:
		w.verdict = verdict
	case state == "WATCHDOG=1":
		w.beats++
	default:
		w.states = append(w.states, state)
	}
}

func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// memory is what the store of a network holds.
func (w *world) memory(network string) *controltest.Memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.memories[network]
	if m == nil {
		m = controltest.NewMemory(time.Hour)
		w.memories[network] = m
	}
	return m
}

// config is a network config with a VNI, which counts from the world's own, and more of its backend.
func (w *world) config(vni uint32, more string) string {
	return fmt.Sprintf(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":%d%s}}`, w.vni+vni, more)
}

// setConfig writes a config, or removes it if the text is empty, and tells those who watch it.
func (w *world) setConfig(text string) {
	if text == "" {
		w.memory("").SetConfig(nil, nil)
	} else {
		w.memory("").SetConfig(nil, []byte(text))
	}
	pace.Wake(w.configs)
}

func (w *world) openStore(_ context.Context, network string, _ *slog.Logger) (control.Store, error) {
	s := &fakeStore{Store: w.memory(network).Open(noTB{}), world: w}
	w.locked(func() { w.stores = append(w.stores, s) })
	return s, nil
}

func (w *world) specs(s *Session, _ int) []overlay.Spec {
	w.locked(func() { w.settles = s.network.settle })
	return []overlay.Spec{{Name: "forwarding", Open: func() (dataplane.Part, error) {
		var held chan struct{}
		if w.locked(func() { held = w.held }); held != nil {
			<-held
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refuse != nil {
			w.opened = append(w.opened, nil)
			return nil, w.refuse
		}
		f := &fakeForward{die: make(chan error, 1)}
		for _, u := range s.network.underlays(s.config, s.iface) {
			f.vteps = append(f.vteps, dataplane.VTEP{Addr: u.Public, VNI: s.config.Backend.VNI, MAC: dataplane.MAC(u.Public, s.config.Backend.VNI)})
		}
		w.opened = append(w.opened, f)
		var d dataplane.Dataplane = f
		if w.wrap != nil {
			d = w.wrap(f)
		}
		return overlay.NewForwarding(d, s.network.cfg.Mode, nil, func() {}), nil
	}}}
}

// start runs the daemon until the test ends.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.daemon, w.cancel, w.done = New(w.cfg), cancel, make(chan error, 1)
	w.daemon.specs = w.specs
	go func() { w.done <- w.daemon.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		w.ended()
		if w.t.Failed() {
			w.t.Logf("log:\n%s", w.log.text())
		}
	})
}

// ended waits for Run and returns its result.
func (w *world) ended() error {
	w.t.Helper()
	select {
	case err := <-w.done:
		w.done <- err
		return err
	case <-time.After(15 * time.Second):
		w.t.Fatalf("the daemon has not ended:\n%s", w.log.text())
		return nil
	}
}

// await asks until ok.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not %s: %+v\n%s", what, w.daemon.Status(), w.log.text())
		}
	}
}

func (w *world) awaitReady() {
	w.t.Helper()
	w.await("ready", w.daemon.Ready)
}

// status is that of the only network.
func (w *world) status() status.Network {
	w.t.Helper()
	all := w.daemon.Status()
	if len(all) != 1 {
		w.t.Fatalf("%d networks: %+v", len(all), all)
	}
	return all[0]
}

// opens is how often a dataplane was opened, or refused to be.
func (w *world) opens() (n int) {
	w.locked(func() { n = len(w.opened) })
	return n
}

// forward is the dataplane that was opened last.
func (w *world) forward() (f *fakeForward) {
	w.locked(func() { f = w.opened[len(w.opened)-1] })
	return f
}

// store is that which was opened last, and how many there were.
func (w *world) store() (s *fakeStore, n int) {
	w.locked(func() { n = len(w.stores); s = w.stores[n-1] })
	return s, n
}

func (w *world) told() (states []string) {
	w.locked(func() { states = slices.Clone(w.states) })
	return states
}

// leases are the keys in the store of the one network.
func (w *world) leases() []string { return w.memory("").Keys(nil) }

// lease writes one into the store, as a daemon of that address would, and returns its key.
func (w *world) lease(subnet, public string) (key string) {
	l := control.Lease{Subnet: mustPrefix(subnet), PublicIP: mustAddr(public), BackendType: "vxlan"}
	l.Backend = control.VTEPData{VNI: w.vni, MAC: dataplane.MAC(l.PublicIP, w.vni)}
	w.memory("").PutLeased(nil, l.Key(), l.Value())
	return l.Key()
}

// fakeStore is a store in memory that can do what only some stores can.
type fakeStore struct {
	control.Store
	world  *world
	closed atomic.Int32
	marked atomic.Int32
}

var (
	_ control.ConfigWatcher = (*fakeStore)(nil)
	_ control.Publisher     = (*fakeStore)(nil)
	_ control.ReadyMarker   = (*fakeStore)(nil)
	_ control.StoreReporter = (*fakeStore)(nil)
	_ io.Closer             = (*fakeStore)(nil)
)

func (s *fakeStore) WatchNetwork(ctx context.Context) <-chan control.StoredNetwork {
	out := make(chan control.StoredNetwork)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.world.configs:
				n, err := s.Network(ctx)
				if err != nil && !isUnusable(err) {
					continue
				}
				select {
				case out <- control.StoredNetwork{Network: n, Err: err}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (s *fakeStore) Published(ctx context.Context, node control.Node) (own []control.Lease, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u, ok := <-s.Watch(ctx)
	if !ok {
		return nil, errors.New("no answer")
	}
	return slices.DeleteFunc(u.Leases, func(l control.Lease) bool { return l.PublicIP != node.PublicIP }), nil
}

func (s *fakeStore) MarkReady(ctx context.Context) error {
	s.marked.Add(1)
	if s.world.lingers != nil {
		<-ctx.Done()
		s.world.lingers <- struct{}{}
		<-s.world.lingers
	}
	return nil
}

func (s *fakeStore) Status() control.StoreStatus {
	return control.StoreStatus{Kind: "memory", Connected: true}
}

func (s *fakeStore) Close() error { s.closed.Add(1); return nil }

// fakeForward is a dataplane that remembers what it was told.
type fakeForward struct {
	vteps []dataplane.VTEP
	die   chan error  // what Run returns
	told  atomic.Bool // its context has ended

	mu     sync.Mutex
	last   dataplane.Wanted
	syncs  int
	closes int
}

func (f *fakeForward) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = w
	f.syncs++
	return w, nil
}

func (f *fakeForward) Prune(context.Context, dataplane.Wanted) error { return nil }

func (f *fakeForward) Run(ctx context.Context, _ func()) error {
	select {
	case <-ctx.Done():
		f.told.Store(true)
		return nil
	case err := <-f.die:
		return err
	}
}

func (f *fakeForward) Status() dataplane.PartStatus {
	return dataplane.PartStatus{Name: "forwarding", State: dataplane.StateOK}
}

func (f *fakeForward) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closes++
	return nil
}

func (f *fakeForward) VTEPs() []dataplane.VTEP { return f.vteps }

func (f *fakeForward) Stats() dataplane.Stats { return dataplane.Stats{RxPackets: 4} }

// seen is what it was told last, and how often it was closed.
func (f *fakeForward) seen() (last dataplane.Wanted, closes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.closes
}

// logBuffer holds what is logged.
type logBuffer struct{ netnstest.Log }

func (l *logBuffer) text() string { return l.String() }

func (l *logBuffer) count(what string) int { return l.Count(what) }

var makeUnder0 = sync.OnceValue(func() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), makeUnderlay("under0", "192.0.2.1/24"))
})

// needUnderlay makes the link that worlds use, in the network namespace of the tests.
func needUnderlay(t *testing.T) {
	t.Helper()
	netnstest.RequireRoot(t)
	if os.Getenv(inNamespace) == "" {
		t.Fatal("the tests are not in a network namespace of their own")
	}
	if err := makeUnder0(); err != nil {
		t.Fatal(err)
	}
}

// makeUnderlay makes a link with an address.
func makeUnderlay(name, addr string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	for _, end := range []string{name, name + "p"} {
		l, err := netlink.LinkByName(end)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		if end == name {
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// publicOf is the address that a lease in a store is of.
func publicOf(t *testing.T, m *controltest.Memory, key string) netip.Addr {
	t.Helper()
	value, _ := m.GetRaw(nil, key)
	l, err := control.ParseLease(key, value)
	if err != nil {
		t.Fatal(err)
	}
	return l.PublicIP
}

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func mustAddr(text string) netip.Addr { return netip.MustParseAddr(text) }
