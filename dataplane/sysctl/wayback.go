package sysctl

import (
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/dataplane"
)

const (
	// askPeriod is the time between two looks at the routes to peers.
	askPeriod = 3 * time.Second
	// dropsCount is how long a packet that the kernel has dropped counts. Peers send at least a probe in ten seconds.
	dropsCount = time.Minute
)

// wayBack sees whether strict rp_filter drops what peers send: the route to a peer leads to another interface than the underlay's,
// and either the peer is on the underlay's link, or the kernel has dropped such packets. Of a peer behind a router the
// first alone can be meant so.
type wayBack struct {
	peers []netip.Addr
	next  int // of peers, to ask for

	asked   time.Time
	detours map[netip.Addr]Detour
	drops   uint64
	known   bool // drops was read once
	dropped time.Time
}

// know learns which peers there are.
func (b *wayBack) know(peers []dataplane.Peer) {
	b.peers = b.peers[:0]
	for _, p := range peers {
		if p.Addr.Is4() && (len(b.peers) == 0 || b.peers[len(b.peers)-1] != p.Addr) { // peers are sorted
			b.peers = append(b.peers, p.Addr)
		}
	}
	b.asked = time.Time{}
}

// look returns what is wrong now. What cannot be read is not known to be wrong.
func (b *wayBack) look(now time.Time, device string) []dataplane.Warning {
	if device == "" || len(b.peers) == 0 {
		return nil
	}
	if now.Sub(b.asked) >= askPeriod {
		b.asked = now
		b.ask(now, device)
	}
	var list []Detour
	for _, d := range b.detours {
		if d.OnLink || !b.dropped.IsZero() && now.Sub(b.dropped) <= dropsCount {
			list = append(list, d)
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b Detour) int { return a.Peer.Compare(b.Peer) })
	return []dataplane.Warning{ReturnPathWarning(device, list)}
}

// ask reads the counter, and looks for the next peers' routes.
func (b *wayBack) ask(now time.Time, device string) {
	drops, err := ReturnPathDrops()
	if err == nil && b.known && drops > b.drops {
		b.dropped = now
	}
	b.drops, b.known = drops, err == nil
	if strict, err := IsStrict(device); err != nil || !strict {
		b.detours = nil
		return
	}
	found, err := Detours(device, b.peers, b.next)
	if err != nil {
		return
	}
	kept := map[netip.Addr]Detour{}
	for i := range b.peers {
		if peer := b.peers[(b.next+i)%len(b.peers)]; i >= maxAsked { // asked for at another time
			if d, ok := b.detours[peer]; ok {
				kept[peer] = d
			}
		}
	}
	for _, d := range found {
		kept[d.Peer] = d
	}
	b.detours, b.next = kept, (b.next+maxAsked)%len(b.peers)
}
