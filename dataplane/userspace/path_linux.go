package userspace

import (
	"errors"
	"os"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// learn notes what the path to p takes.
func learn(q *udp.PathProbe, p *peer) {
	if mtu, err := q.MTU(&p.sockaddr); err == nil {
		p.setMTU(max(mtu-encap.Overhead(p.addr), minMTU))
	}
}

// refresh forgets what is no longer true of the paths to the peers of this family: the kernel
// keeps what it learned for ten minutes.
func (s *sendSockets) refresh(f *forwarding) {
	if s.mtu == nil {
		return
	}
	for i := range f.entries {
		p := f.entries[i].peer
		if p.mtu.Load() == 0 || p.addr.Is6() != s.mtu.IsIPv6() {
			continue
		}
		switch mtu, err := s.mtu.MTU(&p.sockaddr); {
		case errors.Is(err, os.ErrClosed):
			return
		case err == nil && mtu-encap.Overhead(p.addr) >= f.mtu:
			p.setMTU(0)
		case err == nil:
			p.setMTU(max(mtu-encap.Overhead(p.addr), minMTU))
		}
	}
}
