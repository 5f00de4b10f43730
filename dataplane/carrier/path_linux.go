package carrier

import (
	"errors"
	"os"

	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// learn notes what the path to p takes.
func learn(q *udp.PathProbe, p *Peer) {
	if mtu, err := q.MTU(&p.sockaddr); err == nil {
		p.SetMTU(innerMTU(mtu, p))
	}
}

// innerMTU returns the longest packet that fits an underlay packet of mtu bytes to p.
func innerMTU(mtu int, p *Peer) int { return max(mtu-encap.Overhead(p.Addr), MinMTU) }

// refresh forgets what is no longer true of the paths to the peers of this family: the kernel
// keeps what it learned for ten minutes.
func (s *sendSockets) refresh(entries []Entry, hostMTU int) {
	if s.mtu == nil {
		return
	}
	for i := range entries {
		p := entries[i].Peer
		if p.MTU() == 0 || p.Addr.Is6() != s.mtu.IsIPv6() {
			continue
		}
		switch mtu, err := s.mtu.MTU(&p.sockaddr); {
		case errors.Is(err, os.ErrClosed):
			return
		case err == nil && innerMTU(mtu, p) >= hostMTU:
			p.SetMTU(0)
		case err == nil:
			p.SetMTU(innerMTU(mtu, p))
		}
	}
}
