package carrier

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/uplink"
	"github.com/overlayd/overlayd/encap"
)

// MinMTU is the least MTU of IPv4 (RFC 791), and of a TUN device, in bytes.
const MinMTU = 68

// Peer is one remote VTEP for as long as it is wanted: a Sync takes over those that were there
// before. All leases of a VTEP have the one peer.
type Peer struct {
	Addr     netip.Addr   // outer destination; never changes
	sockaddr udp.Sockaddr // the same with the port, for system calls
	// mtu is the longest inner packet that gets there whole, in bytes; 0 as long as
	// nothing but the device's MTU is known.
	mtu atomic.Int32

	mu    sync.Mutex // of entry, and of changes of the MTU: that of the entries is the same
	entry *Entry     // the first of those of the last Sync

	turned atomic.Bool // see TurnAway
	path   path        // of the paths of its carrier

	// way is that of superpackets by the uplink; nil: they go by sockets. A sender that misses it says so in wants.
	way   atomic.Pointer[uplink.Way]
	wants atomic.Bool

	sockets atomic.Bool // it receives by UDP sockets, as far as is known

	sent, received atomic.Uint64 // bytes of inner packets: see Counters.Sent and Received
}

// Traffic returns what went both ways.
func (p *Peer) Traffic() dataplane.Traffic {
	return dataplane.Traffic{TxBytes: p.sent.Load(), RxBytes: p.received.Load()}
}

// Sockets reports whether p receives by UDP sockets, as far as is known.
func (p *Peer) Sockets() bool { return p.sockets.Load() }

// SetSockets notes whether p receives by UDP sockets.
func (p *Peer) SetSockets(is bool) { p.sockets.Store(is) }

// TurnAway notes that a packet to p is longer than its path takes, as far as is known: whoever knows may look again.
func (p *Peer) TurnAway() { p.turned.Store(true) }

// NewPeer makes the peer whose datagrams go to that address and port.
func NewPeer(to netip.AddrPort) *Peer {
	return &Peer{Addr: to.Addr(), sockaddr: udp.NewSockaddr(to)}
}

// MTU returns the longest inner packet that gets to p whole, in bytes; 0: nothing but that of the
// host's device is known.
func (p *Peer) MTU() int { return int(p.mtu.Load()) }

// SetMTU notes the longest inner packet that gets to p whole, in bytes; 0: that of the device.
func (p *Peer) SetMTU(mtu int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mtu.Store(int32(mtu))
	for e := p.entry; e != nil; e = e.next {
		e.mtu.Store(int32(mtu))
	}
}

// Adopt makes e an entry of p: the first of a Sync, which takes the place of all those of the Sync
// before, or one more. It gets the MTU of p, also that of a SetMTU at the same time.
func (p *Peer) Adopt(e *Entry, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Peer = p
	if !first {
		e.next = p.entry
	}
	p.entry = e
	e.mtu.Store(p.mtu.Load())
}

// Entry is all that a packet to one lease of a peer needs. It lives until the next Sync, and is
// immutable but for its MTU.
type Entry struct {
	Peer     *Peer
	mtu      atomic.Int32   // that of the peer, here so that no packet has to fetch the peer
	Template encap.Template // of the headers in front of the packet
	Carrier  uint8          // by which it goes: an index among those of the core
	// Self and Base are overlay addresses of this host and of the peer's, of one family: probes of the path go from one to
	// the other. They are invalid if either side has no such address.
	Self, Base netip.Addr
	next       *Entry // of the same peer
}

// MTU returns that of the peer, without a look at it.
func (e *Entry) MTU() int { return int(e.mtu.Load()) }
