package probe

import (
	"bytes"
	"net/netip"
	"time"
)

// kind is what a probe asks.
type kind uint8

const (
	echo kind = iota
	full
	hop
	under
	kinds = 4
)

// flight is a probe that was sent. It is remembered beyond its time, because its answer may be late.
type flight struct {
	peer   *peer // nil: none
	to     netip.Addr
	sent   time.Duration
	cookie cookie
	size   int // of the ICMP message, in bytes
	sum    uint16
	seq    uint16
	try    uint32 // of an echo: which one to this peer
	kind   kind
	open   bool // there is still time
	done   bool // it was answered
}

// matches reports whether a answers the probe.
func (f *flight) matches(a *answer) bool {
	if f.peer == nil || f.seq != a.seq {
		return false
	}
	if a.outcome == reply {
		return a.from == f.to && a.size == f.size && bytes.Equal(a.data, f.cookie[:])
	}
	return a.to == f.to && f.isQuoted(a) && f.believes(a)
}

// isQuoted reports whether an error quotes the probe. A router may quote only the ICMP header (RFC 792); over
// IPv4 its checksum then stands for the cookie.
func (f *flight) isQuoted(a *answer) bool {
	if len(a.data) >= len(f.cookie) {
		return bytes.Equal(a.data, f.cookie[:])
	}
	return f.to.Is4() && a.sum == f.sum
}

// believes reports whether who sent an error may say so: of what is behind a peer only that peer, of the path every host on it.
func (f *flight) believes(a *answer) bool {
	ofPeer := f.peer.subnet.Contains(a.from) || f.peer.vtep == a.from
	switch a.outcome {
	case expired:
		return f.kind == hop && ofPeer
	case unreachable:
		return f.kind == under || f.kind == underFull || f.kind == hop && ofPeer
	case tooBig:
		return f.kind == full || f.kind == underFull
	}
	return false
}
