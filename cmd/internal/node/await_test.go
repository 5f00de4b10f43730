package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// asked is a store that notes what it is asked, and can be given a first config.
type asked struct {
	*fakeStore
	networks, inits int
	refuse          error            // of Init
	refusals        int              // how often; 0: always
	before          func(second int) // called before each answer; may be nil
}

func (a *asked) Network(ctx context.Context) (control.Network, error) {
	if a.before != nil {
		a.before(a.networks)
	}
	a.networks++
	return a.fakeStore.Network(ctx)
}

func (a *asked) Init(_ context.Context, config []byte) (bool, error) {
	a.inits++
	if a.refuse != nil && (a.refusals == 0 || a.inits <= a.refusals) {
		return false, a.refuse
	}
	_, err := a.fakeStore.Network(context.Background())
	if !errors.Is(err, control.ErrNoNetwork) {
		return false, err
	}
	a.world.setConfig(string(config))
	return true, nil
}

// waiting is a network whose store is open.
func (w *world) waiting() (*Network, *asked) {
	w.daemon = New(w.cfg)
	n := w.daemon.newNetwork("")
	s := &asked{fakeStore: &fakeStore{Store: w.memory("").Open(noTB{}), world: w}}
	n.store = s
	return n, s
}

// TestWaitForConfig: the store is asked every second until it has a usable config, and one state
// of it is logged once a minute, another at once.
func TestWaitForConfig(t *testing.T) {
	needUnderlay(t)
	bad := `{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`
	for _, c := range []struct {
		name   string
		config func(w *world, second int) // writes the config of this second
		usable int                        // the second from which it is; 0: never
		logged int                        // lines within the first five minutes
		says   string                     // in those lines; "": that it waits for the config
	}{
		{name: "none", config: func(*world, int) {}, logged: 5},
		{name: "bad", config: func(w *world, _ int) { w.setConfig(bad) }, logged: 5},
		{name: "down", config: func(w *world, _ int) { w.memory("").SetDown(errDown) }, logged: 5},
		{name: "down, whose text changes", config: func(w *world, s int) {
			w.memory("").SetDown(control.WithReason(control.ReasonUnreachable, fmt.Errorf("dial endpoint %d", s%2)))
		}, logged: 5},
		{name: "none, then bad", logged: 6, config: func(w *world, s int) {
			if s == 90 {
				w.setConfig(bad)
			}
		}},
		{name: "bad, then good", usable: 90, logged: 2, config: func(w *world, s int) {
			if w.setConfig(bad); s >= 90 {
				w.setConfig(w.config(0, ""))
			}
		}},
		{name: "not for this host", logged: 5, says: "not ready: this host cannot carry the network config\" err=\"network config: Backend.VNI: 10000000", config: func(w *world, _ int) { w.setConfig(`{"Network":"10.5.0.0/16","Backend":{"VNI":10000000}}`) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n, s := w.waiting()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute-time.Second/2)
				defer cancel()
				began := time.Now()
				s.before = func(second int) { c.config(w, second) }
				got, err := n.waitForConfig(ctx)
				took := time.Since(began)
				if c.usable == 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %+v, %v; want to wait on", got, err)
				}
				if c.usable > 0 && (err != nil || got.Backend.VNI != w.vni || took.Round(time.Second) != time.Duration(c.usable)*time.Second) {
					t.Errorf("got %+v, %v after %s; want VNI %d after %d s", got, err, took, w.vni, c.usable)
				}
				says := cmp.Or(c.says, "not ready: waiting for the network config")
				if lines := w.log.count(says); lines != c.logged || w.log.count("not ready") != lines {
					t.Errorf("logged %d times, want %d:\n%s", lines, c.logged, w.log.text())
				}
				if asks := int(took.Seconds()) + 1; s.networks != asks {
					t.Errorf("asked %d times in %s, want %d", s.networks, took, asks)
				}
			})
		})
	}
}

// TestHoldAtStart: a daemon whose last subnet does not fit the config waits until that has stood for long enough, from its last coming on.
func TestHoldAtStart(t *testing.T) {
	needUnderlay(t)
	const hold = 30
	for name, c := range map[string]struct {
		gone   int // the second in which the store has something else; 0: it stands
		put    string
		usable int // the second from which it is applied
	}{
		"it stands": {0, "", hold}, "no JSON meanwhile": {10, "{", 11 + hold}, "deleted meanwhile": {10, "", 11 + hold},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.cfg.ConfigHold = hold * time.Second
				if err := os.WriteFile(w.cfg.SubnetFile, []byte("FLANNEL_SUBNET=10.6.77.1/24\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				n, s := w.waiting()
				s.before = func(second int) {
					if w.setConfig(w.config(0, "")); c.gone > 0 && second == c.gone {
						w.setConfig(c.put)
					}
				}
				began := time.Now()
				if _, err := n.waitForConfig(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took.Round(time.Second) != time.Duration(c.usable)*time.Second {
					t.Errorf("applied after %s, want %d s", took, c.usable)
				}
			})
		})
	}
}

// TestWaitEnds: with its context and with a drain, at once and without a log line about it.
func TestWaitEnds(t *testing.T) {
	for name, end := range map[string]func(*world, context.CancelFunc){
		"context": func(_ *world, cancel context.CancelFunc) { cancel() },
		"drain":   func(w *world, _ context.CancelFunc) { w.daemon.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n, _ := w.waiting()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				time.AfterFunc(1500*time.Millisecond, func() { end(w, cancel) })
				if _, err := n.waitForConfig(ctx); err == nil || time.Since(began) != 1500*time.Millisecond {
					t.Errorf("ended after %s with %v", time.Since(began), err)
				}
				if got := w.log.count("level=ERROR"); got != 1 {
					t.Errorf("%d errors, want one:\n%s", got, w.log.text())
				}
			})
		})
	}
}

// TestFirstConfig: the first config is written only if the store has no config.
func TestFirstConfig(t *testing.T) {
	needUnderlay(t)
	for name, c := range map[string]struct {
		first, before string
		refuse        error
		want          string // Network of the config, or what the error says
		written       bool
	}{
		"none before":  {`{"Network":"10.8.0.0/16"}`, "", nil, "10.8.0.0/16", true},
		"one before":   {`{"Network":"10.8.0.0/16"}`, `{"Network":"10.9.0.0/16"}`, nil, "10.9.0.0/16", false},
		"not given":    {"", `{"Network":"10.9.0.0/16"}`, nil, "10.9.0.0/16", false},
		"neither":      {"", "", nil, control.ErrNoNetwork.Error(), false},
		"refused":      {`{"Network":"10.8.0.0/16"}`, "", errDown, "down", false},
		"a bad before": {`{"Network":"10.8.0.0/16"}`, `{"Network":"10.9"}`, nil, "10.9", false},
	} {
		w := newWorld(t)
		if c.first != "" {
			w.cfg.FirstConfig = []byte(c.first)
		}
		n, s := w.waiting()
		if s.refuse = c.refuse; c.before != "" {
			w.setConfig(c.before)
		}
		got, err := n.usableConfig(t.Context())
		if text := fmt.Sprint(got.Network, err); !strings.Contains(text, c.want) {
			t.Errorf("%s: got %s, want %s", name, text, c.want)
		}
		if written := w.log.count("network config written"); (written == 1) != c.written || c.first == "" && s.inits > 0 {
			t.Errorf("%s: written %d times, asked to %d times; want %v", name, written, s.inits, c.written)
		}
	}
}

// newNetworkQuiet is a network on an interface.
func (d *Daemon) newNetworkQuiet(iface underlay.Interface) *Network {
	return &Network{daemon: d, cfg: &d.cfg, iface: iface}
}

// sourced is a store that holds this node's addresses.
type sourced struct {
	*fakeStore
	v4, v6 netip.Addr
	err    error
}

func (s *sourced) PublicIPs(context.Context) (v4, v6 netip.Addr, err error) { return s.v4, s.v6, s.err }

// TestAddressOfTheStore: the store's address wins over the user's, that over the interface's.
func TestAddressOfTheStore(t *testing.T) {
	needUnderlay(t)
	for _, c := range []struct {
		name         string
		store, given string
		err          error
		want         string
	}{
		{"the interface's", "", "", nil, "192.0.2.1"},
		{"the user's", "", "203.0.113.7", nil, "203.0.113.7"},
		{"the store's", "203.0.113.8", "", nil, "203.0.113.8"},
		{"the store's beside the user's", "203.0.113.8", "203.0.113.7", nil, "203.0.113.8"},
		{"no answer", "", "203.0.113.7", errDown, ""},
	} {
		w := newWorld(t)
		if c.given != "" {
			w.cfg.Underlay.PublicIP = mustAddr(c.given)
		}
		n, s := w.waiting()
		source := &sourced{fakeStore: s.fakeStore, err: c.err}
		if c.store != "" {
			source.v4 = mustAddr(c.store)
		}
		n.store = source
		err := n.chooseUnderlay(t.Context(), control.Network{EnableIPv4: true})
		if !errors.Is(err, c.err) || err == nil && (n.node.PublicIP.String() != c.want || n.iface.IPv4.Public.String() != c.want || n.iface.IPv4.Local.String() != "192.0.2.1") {
			t.Errorf("%s: %+v, %v; want %s", c.name, n.iface.IPv4, err, c.want)
		}
		if err == nil {
			n.chooseUnderlay(t.Context(), control.Network{EnableIPv4: true})
			if got := w.log.count("msg=underlay"); got != 1 {
				t.Errorf("%s: logged %d times, want once while it stays the same", c.name, got)
			}
		}
	}
}

// TestRefusalHolds: what no dataplane could carry is opened again every half minute, because the
// obstacle may have gone, and not before.
func TestRefusalHolds(t *testing.T) {
	needUnderlay(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setConfig(w.config(0, `,"GBP":true`))
		n, _ := w.waiting()
		w.daemon.specs = w.specs
		w.refuse = parts.ErrUnfit
		if err := n.claim(); err != nil {
			t.Fatal(err)
		}
		defer n.release()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		if err := n.serve(ctx); err != nil {
			t.Error(err)
		}
		if got := w.opens(); got != 4 { // at 0, 31, 62 and 93 s
			t.Errorf("opened %d times in 100 s, want four", got)
		}
		if got := w.log.count("this host cannot carry the network config"); got != 4 && got != 2 {
			t.Errorf("logged %d times:\n%s", got, w.log.text())
		}
	})
}
