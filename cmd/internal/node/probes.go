package node

import (
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/control"
)

// newProber returns what asks the peers of the session whether they can be reached; nil if nobody wants to know, or nothing leads to them.
func (s *Session) newProber() *probe.Prober {
	n, b := s.network, s.config.Backend
	if n.cfg.ProbeInterval <= 0 || b.Type == control.BackendAlloc {
		return nil
	}
	c := probe.Config{Log: n.cfg.StoreLog.Of(n.log), Interval: n.cfg.ProbeInterval, Limit: n.daemon.probes, Status: s.controller.Status, Tunnel: b.IsVXLAN(), Port: b.Port,
		Heard: n.heard}
	for _, u := range n.underlays(s.config, s.iface) {
		c.Local = append(c.Local, u.Local)
	}
	return probe.New(c)
}
