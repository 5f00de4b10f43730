package carrier

import (
	"time"

	"github.com/overlayd/overlayd/encap"
)

// A user of the host can take every UDP port. Then the sockets that send have none: one of those that receive sends in their place, from
// the port of the VTEPs, which every peer accepts. What is lost:
//
//   - Flows do not differ in their outer ports, so that the peer may receive them by one processor.
//   - There is no port for probes of paths. DF is clear, so that no path needs to be known, and superpackets do not leave by the uplink,
//     which may set it.
//
// Once there are ports again, the sockets get them.

// spreadPeriod is the time between two tries to get ports.
const spreadPeriod = time.Second

// begin makes all descriptors refer to a socket that receives, because no port is free. The caller holds mu.
func (s *sendSockets) begin(in *socket, why error) error {
	if err := s.share(in); err != nil {
		return err
	}
	s.shares, s.tried = true, time.Now()
	s.segments.Store(1)
	if s.cfg.Segment && in.setup(knowsSegments) == nil {
		s.segments.Store(encap.MaxRunDatagrams) // if it refuses them, giveUp notes that
	}
	s.cfg.Log.Warn("every UDP port of this host is taken: VXLAN packets leave from the VXLAN port alone", "local", s.cfg.Local, "err", why,
		"fix", "end the program that has the ports, which ss -Huanp names, or let its user open fewer files (ulimit -n)")
	return nil
}

// share makes all descriptors refer to a socket that receives. The caller holds mu.
func (s *sendSockets) share(in *socket) error {
	return in.setup(func(fd int) error {
		if err := s.setUp(fd); err != nil {
			return err
		}
		fds := make([]int, len(s.fds))
		for i := range fds {
			fds[i] = fd
		}
		if err := s.install(fds); err != nil {
			return err
		}
		for i := range s.ports {
			s.ports[i].Store(0)
		}
		return nil
	})
}

// follow moves shared descriptors to another receiving socket. The one that they refer to is about to be closed, and its port must become free.
func (s *sendSockets) follow(in *socket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shares || s.closed {
		return nil
	}
	return s.share(in)
}

// look gives the sockets ports of their own again, once there are some.
func (s *sendSockets) look(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shares || s.closed || now.Sub(s.tried) < spreadPeriod {
		return
	}
	s.tried = now
	if s.spread() != nil {
		return
	}
	s.shares = false
	s.cfg.Log.Info("there are UDP ports again: VXLAN packets leave from several", "local", s.cfg.Local)
}

// isSpread reports whether there are sockets of their own.
func (s *sendSockets) isSpread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.shares
}
