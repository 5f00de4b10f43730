package node

import (
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// A session that ends because another is to begin leaves its userspace dataplane forwarding, as the kernel's does by itself. If the next
// session wants the same device, port and addresses, it goes on with it as it is: no packet is lost, and nobody else can take the UDP port. If
// not, the next one goes on with those of the queues and sockets that it wants too.

// keepForwarding keeps the dataplane of a session that ends with err.
func (s *Session) keepForwarding(err error) {
	n := s.network
	f := s.overlay.Forwarding()
	if err == nil || f == nil || f.Mode != fit.Userspace || n.daemon.draining() {
		return
	}
	f.Keep()
	n.kept = s
}

// carries reports whether the dataplane of a session has the device of a config: if not, that is removed.
func (s *Session) carries(c control.Network) bool {
	return c.Backend.IsVXLAN() && s.config.Backend.VNI == c.Backend.VNI
}

// fits reports whether the dataplane of a session is that of a config on the present underlay.
func (s *Session) fits(c control.Network) bool {
	n := s.network
	return s.carries(c) && s.config.Backend.Port == c.Backend.Port && !c.Backend.GBP && !c.Backend.Learning &&
		slices.Equal(n.underlays(s.config, s.iface), n.underlays(c, n.iface))
}

// filesOf are the names of the files that a session of c on an underlay reads from. Of several networks the port has the sockets.
func (n *Network) filesOf(c control.Network, iface underlay.Interface) (names []string) {
	if !c.Backend.IsVXLAN() {
		return nil
	}
	names = []string{inherit.QueueName(c.Backend.VNI)}
	if !n.cfg.several() {
		names = append(names, inherit.PortNames(n.underlays(c, iface), c.Backend.Port)...)
	}
	return names
}

// endKept ends the dataplane that is kept, if there is one. Its files of these names are for the next session.
func (n *Network) endKept(names ...string) {
	s := n.kept
	if s == nil {
		return
	}
	n.kept = nil
	var exports []carrier.Export
	if e, ok := s.overlay.Forwarding().Dataplane.(carrier.Exporter); ok && len(names) > 0 {
		exports, _ = e.Export() // if it is closed there is nothing to go on with
	}
	s.stopForwarding()
	exports = slices.DeleteFunc(exports, func(e carrier.Export) bool {
		unwanted := !slices.Contains(names, e.Name)
		if unwanted {
			e.File.Close()
		}
		return unwanted
	})
	n.daemon.forget(slices.DeleteFunc(n.filesOf(s.config, s.iface), func(name string) bool { return slices.Contains(names, name) }))
	n.inherits.Leave(exports)
}

// takeKept has the session go on with the dataplane that is kept. nil: no dataplane is kept, it has ended meanwhile, or it does not fit and
// was ended.
func (s *Session) takeKept() *overlay.Forwarding {
	n := s.network
	switch {
	case n.kept == nil:
		return nil
	case !n.kept.fits(s.config):
		n.endKept(n.filesOf(s.config, s.iface)...)
		return nil
	}
	f := n.kept.overlay.Forwarding()
	if !f.Taken() {
		n.endKept()
		return nil
	}
	s.before = n.kept.leave()
	n.kept = nil
	return f
}
