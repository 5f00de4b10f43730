package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

// TestSessionLife: a daemon that is told to stop closes what it opened and leaves what makes
// traffic go on: the lease and the subnet file.
func TestSessionLife(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	s, _ := w.store()
	w.await("marked ready", func() bool { return s.marked.Load() == 1 })
	st := w.status()
	if st.VNI != w.vni || st.Mode != "kernel" || st.Lease == nil || st.MTU != 1450 || st.Store == nil || st.Store.Kind != "memory" || st.Counters["rx_packets"] != 4 {
		t.Errorf("status %+v", st)
	}
	if pid, held, err := nodefile.Holder(w.cfg.SubnetFile); !held || err != nil || pid != os.Getpid() && pid != 0 {
		t.Errorf("the subnet file is not claimed: %d, %v, %v", pid, held, err)
	}
	w.cancel()
	if err := w.ended(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, closes := w.forward().seen(); closes != 1 || s.closed.Load() != 1 {
		t.Errorf("dataplane closed %d times, store %d times; want once each", closes, s.closed.Load())
	}
	if _, err := os.Stat(w.cfg.SubnetFile); err != nil || len(w.leases()) != 1 {
		t.Errorf("subnet file: %v, leases %q; want both to stay", err, w.leases())
	}
	if got := w.told(); !slices.Equal(got, []string{"READY=1", "STOPPING=1"}) {
		t.Errorf("the service manager was told %q", got)
	}
	if w.daemon.Ready() {
		t.Error("ready after its end")
	}
	if n, err := nodefile.Claim(w.cfg.SubnetFile); err != nil || !slices.Equal(n.Left.VNIs, []uint32{w.vni}) {
		t.Errorf("the next daemon: %+v, %v; want to be told of VNI %d", n, err, w.vni)
	} else {
		n.Release()
	}
	if w.log.count("msg=stats") != 1 || w.log.count("rx_packets=4") != 1 || w.log.count("msg=stopped") != 1 {
		t.Error("the log does not end with the statistics")
	}
}

// TestTrafficEndsLast: the dataplane goes on for as long as anything else of a session needs to end.
func TestTrafficEndsLast(t *testing.T) {
	t.Parallel()
	lingers := make(chan struct{})
	needUnderlay(t)
	w := newWorld(t)
	w.lingers = lingers
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	s, _ := w.store()
	w.await("marked ready", func() bool { return s.marked.Load() == 1 })
	f := w.forward()
	w.cancel()
	<-lingers
	if f.told.Load() {
		t.Error("the dataplane is told to end while the session still runs")
	}
	lingers <- struct{}{}
	if err := w.ended(); err != nil || !f.told.Load() {
		t.Errorf("ended with %v, the dataplane was told: %v", err, f.told.Load())
	}
}

// TestSessionTakesMTU: another MTU in the config reaches the parts in the same session.
func TestSessionTakesMTU(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	w.setConfig(w.config(0, `,"MTU":1400`))
	w.await("told of the MTU", func() bool { last, _ := w.forward().seen(); return last.MTU == 1350 })
	if w.opens() != 1 || !w.daemon.Ready() {
		t.Errorf("%d sessions, ready %v; want one that stays ready", w.opens(), w.daemon.Ready())
	}
	if w.log.count("configured=1400") != 1 {
		t.Error("the change is not logged once")
	}
}

// TestSessionTakesMTUOfUnderlay: another MTU of the underlay's link reaches the parts in the same session, and the status shows both.
func TestSessionTakesMTUOfUnderlay(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	if err := makeUnderlay("mtu0", "192.0.2.97/28"); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("mtu0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(link) })
	w := newWorld(t)
	w.cfg.Underlay.Iface = []string{"mtu0"}
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	if u := w.status().Underlay; u.Interface != "mtu0" || u.MTU != 1500 {
		t.Errorf("underlay %+v", u)
	}
	if err := netlink.LinkSetMTU(link, 1400); err != nil {
		t.Fatal(err)
	}
	w.await("told of the MTU", func() bool { return w.status().MTU == 1350 })
	u := w.status().Underlay
	if u.MTU != 1400 || len(u.Ends) != 1 || u.Ends[0].Local.String() != "192.0.2.97" || w.opens() != 1 || !w.daemon.Ready() {
		t.Errorf("underlay %+v, %d sessions, ready %v; want an MTU of 1400 and one session that stays ready", u, w.opens(), w.daemon.Ready())
	}
}

// TestNetworkChange: another VNI takes another session and another device, with the same store.
func TestNetworkChange(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	before := w.status().SessionStart
	w.setConfig(w.config(1, ""))
	w.await("on the next VNI", func() bool { st := w.status(); return st.Ready && st.VNI == w.vni+1 })
	if _, closes := w.opened[0].seen(); w.opens() != 2 || closes != 1 {
		t.Errorf("%d sessions, the first closed %d times", w.opens(), closes)
	}
	if s, n := w.store(); n != 1 || s.closed.Load() != 0 {
		t.Errorf("%d stores: the connection should outlive a config", n)
	}
	if !w.status().SessionStart.After(before) || w.log.count("session ended: opening another") != 1 {
		t.Error("the status or the log do not tell of another session")
	}
	for vni, held := range map[uint32]bool{w.vni: false, w.vni + 1: true} {
		c, err := claim.Beside(w.cfg.SubnetFile).Claim(vni)
		if errors.As(err, new(*claim.ServedError)) != held {
			t.Errorf("claim of flannel.%d: %v, want held %v", vni, err, held)
		}
		c.Release()
	}
	w.await("the node file has the VNI of this session only", func() bool {
		b, err := os.ReadFile(nodefile.Path(w.cfg.SubnetFile))
		return err == nil && strings.Count(string(b), "vni ") == 1
	})
}

// TestHeldConfigGoes: a config under which the own subnet does not fit, and that the store has no more when it would be applied, is never
// applied: the session goes on, whatever is in its place.
func TestHeldConfigGoes(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]string{
		"no JSON": `{"Network":`, "another backend": `{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`, "deleted": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := holdingWorld(t)
			until := w.status().ConfigHeld.Until
			w.setConfig(next)
			w.await("held no longer", func() bool { h := w.status().ConfigHeld; return h == nil || h.Until.IsZero() })
			w.await("at the time when it would be applied", func() bool { return time.Since(until) > 0 })
			w.setConfig(w.config(0, `,"MTU":1400`))
			w.await("told of the MTU", func() bool { last, _ := w.forward().seen(); return last.MTU == 1350 })
			if w.opens() != 1 || !w.daemon.Ready() || w.log.count("session ended") > 0 {
				t.Errorf("%d sessions, ready %v; want one that stays ready", w.opens(), w.daemon.Ready())
			}
		})
	}
}

// TestUnusableConfigIsShown: while the store has no config that can be used, status warns of it: of a session that goes on, and of a
// daemon that waits for a config. With a good one the warning is gone.
func TestUnusableConfigIsShown(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for name, c := range map[string]struct{ config, says string }{
		"no JSON":           {`{"Network":`, "no usable network config in the store: network config: read JSON"},
		"another backend":   {`{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`, "no usable network config in the store: network config: backend type"},
		"deleted":           {"", "no usable network config in the store"},
		"not for this host": {`{"Network":"10.5.0.0/16","Backend":{"VNI":10000000}}`, "the network config in the store is not applied: network config: Backend.VNI"},
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				good := w.config(0, "")
				if running {
					w.setConfig(good)
				} else {
					w.setConfig(c.config)
				}
				w.start()
				if running {
					w.awaitReady()
					w.setConfig(c.config)
				}
				w.await("warned of", func() bool { return strings.HasPrefix(w.configWarning().Text, c.says) })
				if d := status.Report(status.Process{}, true, w.daemon.Status()); d.Verdict.State != map[bool]status.State{true: status.Degraded, false: status.NotReady}[running] {
					t.Errorf("running %v: verdict %s", running, d.Verdict)
				}
				if got := w.configWarning(); !strings.Contains(got.Fix, "overlayd check config") || got.Since.IsZero() || got.State != status.Degraded {
					t.Errorf("warning %+v", got)
				}
				w.setConfig(good)
				w.await("well", func() bool { return w.daemon.Ready() && w.configWarning() == status.Warning{} })
				if w.opens() != 1 {
					t.Errorf("%d sessions, want one", w.opens())
				}
			})
		}
	}
}

// configWarning is what the status says of a config that is refused.
func (w *world) configWarning() status.Warning {
	for _, warning := range status.Report(status.Process{}, true, w.daemon.Status()).Warnings {
		if warning.ID == "config_refused" {
			return warning
		}
	}
	return status.Warning{}
}

// TestHeldConfigOfAStoreThatIsAway: a config that has stood for long enough is applied only when the store still has it, so not while
// the store does not answer: the next session would not begin.
func TestHeldConfigOfAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	w := holdingWorld(t)
	until := w.status().ConfigHeld.Until
	w.memory("").SetDown(errDown)
	w.await("past the time when it would be applied", func() bool { return time.Since(until) > 200*time.Millisecond })
	if w.opens() != 1 || !w.daemon.Ready() || w.log.count("session ended") > 0 {
		t.Errorf("%d sessions, ready %v; want one that stays ready", w.opens(), w.daemon.Ready())
	}
	w.memory("").SetDown(nil)
	w.await("applied", func() bool {
		st := w.status()
		return st.Ready && st.Lease != nil && strings.HasPrefix(st.Lease.Key, "10.6.")
	})
	if w.log.count("it has stood for") != 1 {
		t.Error("the log does not say why another session begins")
	}
	var settles time.Duration
	if w.locked(func() { settles = w.settles }); settles != 0 {
		t.Errorf("the guard lets packets come plainly for %s, though all hosts encapsulate them before and after", settles)
	}
}

// holdingWorld returns a daemon that is ready, and holds a config for a second.
func holdingWorld(t *testing.T) *world {
	t.Helper()
	needUnderlay(t)
	w := newWorld(t)
	w.cfg.ConfigHold = time.Second
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	w.setConfig(strings.Replace(w.config(0, ""), "10.5.", "10.6.", 1))
	w.await("holding", func() bool { return w.status().ConfigHeld != nil })
	return w
}

// TestUnderlayChange: another address takes another session, which publishes it, and another
// connection to the store.
func TestUnderlayChange(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	if err := makeUnderlay("moves0", "192.0.2.65/28"); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("moves0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(link) })
	w := newWorld(t)
	w.cfg.Underlay.Iface = []string{"moves0"}
	w.setConfig(w.config(0, ""))
	w.start()
	w.awaitReady()
	first, _ := w.store()
	for _, c := range []struct {
		addr   string
		change func(netlink.Link, *netlink.Addr) error
	}{{"192.0.2.65/28", netlink.AddrDel}, {"192.0.2.66/28", netlink.AddrAdd}} {
		addr, err := netlink.ParseAddr(c.addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	w.await("on the other address", func() bool {
		st := w.status()
		return st.Ready && st.Underlay.Ends[0].Local.String() == "192.0.2.66"
	})
	if _, n := w.store(); n != 2 || first.closed.Load() != 1 {
		t.Errorf("%d stores, the first closed %d times; want a second connection", n, first.closed.Load())
	}
	w.await("published", func() bool {
		return slices.ContainsFunc(w.leases(), func(k string) bool { return publicOf(t, w.memory(""), k).String() == "192.0.2.66" })
	})
	if w.log.count("was [") == 0 || w.log.count("the underlay has changed") == 0 {
		t.Error("the log does not say what has changed")
	}
}

// TestDataplaneDies: once an overlay was open, nothing that it does ends the daemon: the next
// session begins after a pause, and until then the status says why no session runs.
func TestDataplaneDies(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	key := w.leases()
	held := make(chan struct{})
	w.locked(func() { w.refuse, w.held = errDown, held })
	w.forward().die <- errors.New("sockets have died")
	w.await("without a session", func() bool { return strings.Contains(w.status().Err, "sockets have died") })
	if st := w.status(); st.Ready || !st.SessionStart.IsZero() || st.ErrSince.IsZero() || st.Lease != nil {
		t.Errorf("status between sessions: %+v", st)
	}
	close(held)
	w.await("refused", func() bool { return w.opens() == 2 && w.status().Err == "open dataplane: down" })
	w.locked(func() { w.refuse = nil })
	w.awaitReady()
	if !slices.Equal(w.leases(), key) {
		t.Errorf("leases %q, want %q as before", w.leases(), key)
	}
	if _, n := w.store(); n != 1 {
		t.Errorf("%d stores, want one that stays open", n)
	}
	if n := w.log.count("session ended: "); n != 2 {
		t.Errorf("%d faults are logged, want 2", n)
	}
}

// TestOverlayAfterALongWait: an overlay that could not be opened is tried again less and less often, however long the
// session had waited for its config, and that is logged once.
func TestOverlayAfterALongWait(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	w.locked(func() { w.refuse = errDown })
	w.setConfig("")
	w.forward().die <- errors.New("sockets have died")
	w.await("waiting", func() bool { return w.log.count("waiting for the network config") > 0 })
	waited := time.Now()
	w.await("waiting for long", func() bool { return time.Since(waited) > time.Second })
	w.setConfig(w.config(0, ""))
	w.await("refused", func() bool { return w.opens() >= 3 })
	var said []string
	for line := range strings.Lines(w.log.text()) {
		if strings.Contains(line, "open dataplane: down") {
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "trying again until the overlay works") {
		t.Errorf("logged %q", said)
	}
}

// TestFirstSession: what this host lacks at the start ends the daemon, with the reason.
func TestFirstSession(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for name, c := range map[string]struct {
		change func(*world)
		says   string
	}{
		"no such interface":   {func(w *world) { w.cfg.Underlay.Iface = []string{"none0"} }, "choose underlay interface"},
		"no dataplane":        {func(w *world) { w.refuse = errDown }, "open dataplane: down"},
		"a device of another": {func(w *world) { w.claimDevice() }, "serves flannel."},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(w)
			w.setConfig(w.config(0, ""))
			w.start()
			if err := w.ended(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v, want %q", err, c.says)
			}
			if s, _ := w.store(); s.closed.Load() != 1 {
				t.Error("the store is left open")
			}
			if w.log.count("msg=stopped") != 0 {
				t.Error("the log says that it has stopped, as if it had been asked to")
			}
			if len(w.leases()) > 0 {
				t.Errorf("leases %q", w.leases())
			}
		})
	}
}

// claimDevice has another daemon serve the device of this one.
func (w *world) claimDevice() {
	c, err := claim.Beside(w.cfg.SubnetFile).Claim(w.vni)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Release)
}

// TestUnfitConfig: a config that no dataplane here can carry is waited out; another is tried within
// a second.
func TestUnfitConfig(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.refuse = errors.Join(parts.ErrUnfit, errors.New("GBP needs the kernel"))
	w.setConfig(w.config(0, `,"GBP":true`))
	w.start()
	w.await("refused", func() bool {
		return strings.Contains(w.log.text(), "not ready: this host cannot carry the network config")
	})
	if w.opens() != 1 || w.daemon.Ready() || w.status().Err == "" {
		t.Errorf("opened %d times, status %+v", w.opens(), w.status())
	}
	w.locked(func() { w.refuse = nil })
	w.setConfig(w.config(0, ""))
	w.awaitReady()
	if w.opens() != 2 {
		t.Errorf("opened %d times, want two", w.opens())
	}
}

// TestDrainInEachPhase: a drain gives back what this node published and removes the subnet file,
// whatever the daemon is doing.
func TestDrainInEachPhase(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	for name, c := range map[string]struct {
		config bool
		until  func(*world)
	}{
		"at the start": {true, func(*world) {}},
		"while a config is missing": {false, func(w *world) {
			w.await("waiting", func() bool { return w.log.count("waiting for the network config") > 0 })
		}},
		"while it is ready": {true, func(w *world) { w.awaitReady() }},
		"between two sessions": {true, func(w *world) {
			w.awaitReady()
			w.locked(func() { w.refuse = errDown })
			w.forward().die <- errDown
			w.await("without a session", func() bool { return w.status().Err != "" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.lease("10.5.77.0/24", "192.0.2.1")
			other := w.lease("10.5.78.0/24", "192.0.2.2")
			if err := os.WriteFile(w.cfg.SubnetFile, []byte("FLANNEL_SUBNET=10.5.77.1/24\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.config {
				w.setConfig(w.config(0, ""))
			}
			w.start()
			c.until(w)
			w.daemon.Drain()
			w.daemon.Drain()
			if err := w.ended(); err != nil {
				t.Errorf("drained with %v", err)
			}
			if got := w.leases(); !slices.Equal(got, []string{other}) {
				t.Errorf("leases %q, want only the other node's", got)
			}
			if _, err := os.Stat(w.cfg.SubnetFile); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the subnet file is still there: %v", err)
			}
			if s, _ := w.store(); s.closed.Load() != 1 {
				t.Error("the store is left open")
			}
		})
	}
}
