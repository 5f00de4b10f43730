package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// TestChanged: which changes need another session, and after which of them a host may still send plainly what others encapsulate.
func TestChanged(t *testing.T) {
	config := control.Network{EnableIPv4: true, Backend: control.Backend{VNI: 1, Port: 8472}}
	v4 := underlay.End{Local: netip.MustParseAddr("192.0.2.1")}
	v6 := underlay.End{Local: netip.MustParseAddr("2001:db8::1")}
	iface := underlay.Interface{Name: "eth0", Index: 2, MTU: 1500, IPv4: v4}
	for _, c := range []struct {
		name   string
		change func(*control.Network, *underlay.Interface)
		says   string // empty: none
		plain  bool
		direct bool // before
	}{
		{"nothing", func(*control.Network, *underlay.Interface) {}, "", false, false},
		{"MTU of the interface", func(_ *control.Network, i *underlay.Interface) { i.MTU = 1400 }, "", false, false},
		{"configured MTU", func(c *control.Network, _ *underlay.Interface) { c.Backend.MTU = 1400 }, "", false, false},
		{"port", func(c *control.Network, _ *underlay.Interface) { c.Backend.Port = 4789 }, "network config has changed", false, false},
		{"direct routes", func(c *control.Network, _ *underlay.Interface) { c.Backend.DirectRouting = true }, "network config has changed", true, false},
		{"no direct routes", func(c *control.Network, _ *underlay.Interface) { c.Backend.DirectRouting = false }, "network config has changed", true, true},
		{"VNI, with direct routes", func(c *control.Network, _ *underlay.Interface) { c.Backend.VNI = 7 }, "network config has changed", true, true},
		{"type", func(c *control.Network, _ *underlay.Interface) { c.Backend.Type = control.BackendHostGW }, "network config has changed", true, false},
		{"mode of the rules", func(c *control.Network, _ *underlay.Interface) { c.EnableNFTables = true }, "network config has changed", false, false},
		{"address", func(_ *control.Network, i *underlay.Interface) { i.IPv4 = v6 }, "underlay has changed", false, false},
		{"address of the other family", func(_ *control.Network, i *underlay.Interface) { i.IPv6 = v6 }, "", false, false},
		{"only the other family", func(_ *control.Network, i *underlay.Interface) { i.IPv4, i.IPv6 = underlay.End{}, v6 }, "underlay has changed", false, false},
		{"interface of the same name", func(_ *control.Network, i *underlay.Interface) { i.Index = 7 }, "underlay has changed", false, false},
	} {
		config, nextIface := config, iface
		config.Backend.DirectRouting = c.direct
		nextConfig := config
		c.change(&nextConfig, &nextIface)
		err := changed(config, nextConfig, iface.Underlays(true, false), nextIface.Underlays(true, false))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.says)
		}
		if plain := errors.Is(err, control.ErrNetworkChanged) && !errors.As(err, new(encapsulatedAlike)); plain != c.plain {
			t.Errorf("%s: plain packets: %t", c.name, plain)
		}
	}
}

// TestApplyChanges: an MTU of either side is taken over while the session goes on; what is the same
// changes nothing; anything else, and an MTU that is too small, ends it.
func TestApplyChanges(t *testing.T) {
	config := control.Network{EnableIPv4: true, Backend: control.Backend{VNI: 1, Port: 8472}}
	iface := underlay.Interface{Name: "eth0", Index: 2, MTU: 1500, IPv4: underlay.End{Local: netip.MustParseAddr("192.0.2.1")}}
	withMTU := func(mtu int) underlay.Interface { i := iface; i.MTU = mtu; return i }
	configured := func(mtu int) control.Network { c := config; c.Backend.MTU = mtu; return c }
	other := config
	other.Backend.Port = 4789
	renumbered, moved, renamed := iface, iface, iface
	renamed.Name = "lan0"
	renumbered.IPv4.Local, moved.Name, moved.Index = netip.MustParseAddr("192.0.2.9"), "tun0", 3
	for _, c := range []struct {
		name    string
		changes []any
		mtus    []int
		ends    error // nil: it goes on
	}{
		{"nothing", []any{iface, config}, nil, nil},
		{"interface", []any{withMTU(1400), withMTU(1400), iface}, []int{1350, 1450}, nil},
		{"config", []any{configured(1300), configured(2000)}, []int{1250, 1450}, nil},
		{"both", []any{withMTU(1400), configured(1400), configured(1300)}, []int{1350, 1250}, nil},
		{"port", []any{withMTU(1400), other}, []int{1350}, control.ErrNetworkChanged},
		{"another interface", []any{moved}, nil, ErrMoved},
		{"another address", []any{renumbered}, nil, errUnderlayChanged},
		{"another name", []any{withMTU(1400), renamed}, []int{1350}, errUnderlayChanged},
		{"too small", []any{withMTU(100)}, nil, errUnderlayChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &Session{network: newTestDaemon(false).newNetwork(""), config: config, iface: iface}
			ifaces, configs := make(chan underlay.Interface), make(chan control.StoredNetwork)
			var mtus []int
			done := make(chan error)
			go func() {
				done <- s.applyChanges(t.Context(), ifaces, configs, func(mtu int) { mtus = append(mtus, mtu) })
			}()
			for _, change := range c.changes {
				switch change := change.(type) {
				case underlay.Interface:
					ifaces <- change
				case control.Network:
					configs <- control.StoredNetwork{Network: change}
				}
			}
			if c.ends == nil {
				close(configs) // as when the context ends
			}
			err := <-done
			if !errors.Is(err, c.ends) {
				t.Errorf("ended with %v, want %v", err, c.ends)
			}
			if c.ends == ErrMoved && !strings.Contains(err.Error(), "underlay has changed to another interface: was eth0 192.0.2.1, is tun0 192.0.2.1") {
				t.Errorf("says %v", err)
			}
			if !slices.Equal(mtus, c.mtus) {
				t.Errorf("MTUs %v, want %v", mtus, c.mtus)
			}
		})
	}
}

// TestFlipsOfTheMTUAreFewLines: whoever may write the config must not be able to fill the log.
func TestFlipsOfTheMTUAreFewLines(t *testing.T) {
	var log strings.Builder
	d := newTestDaemon(false)
	d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	d.cfg.StoreLog = logs.NewBound(d.cfg.Log)
	config := control.Network{EnableIPv4: true, Backend: control.Backend{VNI: 1, Port: 8472}}
	s := &Session{network: d.newNetwork(""), config: config, iface: underlay.Interface{Name: "eth0", Index: 2, MTU: 1500}}
	configs := make(chan control.StoredNetwork)
	done := make(chan error)
	set := 0
	go func() { done <- s.applyChanges(t.Context(), nil, configs, func(int) { set++ }) }()
	const flips = 1000
	for i := range flips {
		config.Backend.MTU = 1300 + i%2
		configs <- control.StoredNetwork{Network: config}
	}
	close(configs)
	if err := <-done; err != nil || set != flips {
		t.Errorf("%d MTUs set, %v", set, err)
	}
	if n := strings.Count(log.String(), "msg=MTU"); n == 0 || n > 100 {
		t.Errorf("%d lines of %d changes, want 1 to 100", n, flips)
	}
}
