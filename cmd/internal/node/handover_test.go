package node

import (
	"log/slog"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// sessionOnEth0 returns a session of 10.5.0.0/16 on the underlay 192.0.2.2 of a namespace.
func sessionOnEth0(ns *netnstest.NS, n *Network) (s *Session) {
	ns.Must(func() error {
		config, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		local := underlay.End{Local: mustAddr("192.0.2.2"), Public: mustAddr("192.0.2.2")}
		s = &Session{network: n, config: config, iface: underlay.Interface{Name: "eth0", Index: link.Attrs().Index, MTU: 1500, IPv4: local}}
		return nil
	})
	return s
}

// TestHandOverFails: what the kernel could not take over is not logged as handed over.
func TestHandOverFails(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", ns)
	var log logBuffer
	n := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))}).newNetwork("")
	s := sessionOnEth0(ns, n)
	s.overlay = new(overlay.Overlay)
	ns.Must(func() error {
		if err := s.overlay.Sync(t.Context(), dataplane.Wanted{MTU: 1450}); err != nil {
			return err
		}
		c := s.kernelConfig(1450)
		c.Later = true
		k, err := kernel.Open(c)
		if err != nil {
			return err
		}
		if err := k.Close(); err != nil {
			return err
		}
		if err := s.handOver(k); err == nil || log.count("handed over") > 0 {
			t.Errorf("handed over with %v, logged:\n%s", err, log.text())
		}
		return nil
	})
}
