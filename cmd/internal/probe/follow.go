package probe

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/control/controller"
)

// Few peers are asked everything at each turn; of more, what is not an echo takes a part of the rate only.
const (
	fewPeers    = 100
	extraPeriod = time.Minute
	extraRate   = 20 // peers a second
)

// minExtra keeps apart what hosts answer only once a second (net.ipv4.icmp_ratelimit).
const minExtra = 2 * time.Second

// follow makes the peers those of the latest status, and keeps what is known of those that are the same.
func (p *Prober) follow() {
	s := p.cfg.Status()
	if s == p.followed {
		return
	}
	p.followed = s
	p.addPlaces(len(s.Peers))
	p.turn++
	now := p.now()
	if !s.Held {
		p.cfg.Heard = p.heard()
	}
	if len(p.bySubnet) == 0 { // of many peers no memory is left behind
		p.bySubnet, p.peers, p.queue = make(map[netip.Prefix]*peer, len(s.Peers)), make([]*peer, 0, len(s.Peers)), make(queue, 0, len(s.Peers))
	}
	p.peers = p.peers[:0]
	for i := range s.Peers {
		of := &s.Peers[i]
		if q := p.bySubnet[of.Subnet]; !s.Held || !isProbed(of) || q != nil && q.turn == p.turn { // a subnet that changes hands is there twice
			continue
		}
		q := p.known(of, len(s.Peers), now)
		q.turn = p.turn
		p.peers = append(p.peers, q)
	}
	for subnet, q := range p.bySubnet {
		if q.turn != p.turn {
			p.queue.remove(q)
			delete(p.bySubnet, subnet)
		}
	}
	if len(p.peers) > 0 {
		p.cfg.Heard = nil // a subnet that comes later may be another node's
	}
	p.setExtra()
}

// Heard returns the subnets whose nodes ever answered through the overlay, for the next session.
func (p *Prober) Heard() map[netip.Prefix]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard()
}

// heard does the work of Heard. Without peers it is what was known before.
func (p *Prober) heard() map[netip.Prefix]bool {
	if len(p.peers) == 0 {
		return p.cfg.Heard
	}
	heard := map[netip.Prefix]bool{}
	for _, q := range p.peers {
		if q.hasAnswered() {
			heard[q.subnet] = true
		}
	}
	return heard
}

// isProbed reports whether packets are meant to reach a peer.
func isProbed(of *controller.PeerStatus) bool {
	return of.State != controller.PeerRefused && of.State != controller.PeerFailed && of.VTEP.IsValid()
}

// known returns the peer with that subnet and VTEP. If it is new, its first echo comes soon: of many, one after the other. That it has
// answered at another VTEP stays known: a node that changes its address and is silent from then on is cut off.
func (p *Prober) known(of *controller.PeerStatus, peers int, now time.Duration) *peer {
	q := p.bySubnet[of.Subnet]
	if q != nil && q.vtep == of.VTEP {
		return q
	}
	before := p.cfg.Heard[of.Subnet]
	if q != nil {
		p.queue.remove(q)
		before = q.hasAnswered()
	}
	spread := min(p.rules.interval, p.rules.patience+time.Duration(peers)*time.Second/perSecond)
	q = newPeer(of.Subnet, of.VTEP, p.cfg.Tunnel, now, now+rand.N(spread))
	q.before = before
	p.bySubnet[of.Subnet] = q
	p.queue.add(q)
	return q
}

// setExtra decides how often other kinds than an echo are sent.
func (p *Prober) setExtra() {
	n := len(p.peers)
	p.rules.extra, p.rules.many = max(p.rules.interval, minExtra), n > fewPeers
	if p.rules.many {
		p.rules.extra = max(p.rules.extra, extraPeriod, time.Duration(n)*time.Second/extraRate)
	}
}

// facts returns what texts need besides a peer.
func (p *Prober) facts() *facts {
	return &facts{Tunnel: p.cfg.Tunnel, Port: p.cfg.Port, MTU: p.followed.MTU}
}
