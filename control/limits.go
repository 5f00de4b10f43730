package control

import (
	"fmt"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
)

// limits says what does not work with the peers that are used, and which outer sources they have.
type limits struct {
	a       *admission
	rib     *RIB
	owner   map[netip.Addr]netip.Addr // of a source that was accepted: the VTEP that has it; nil until somebody has another source
	refused map[netip.Addr]struct{}   // VTEPs whose source was not
	found   []Rejection
}

// apply gives admitted claims, oldest first, their sources.
func (l *limits) apply(claims []claim, admitted []int32) {
	lacks := [...]bool{!l.a.self.VTEP(false).Addr.IsValid(), !l.a.self.VTEP(true).Addr.IsValid()} // by family
	for _, i := range admitted {
		c := &claims[i]
		if f := familyIndex(c.subnet.Addr()); lacks[f] && c.rec.Facts.V == 0 && c.rec.VTEP(f == 1).Addr.IsValid() {
			name := familyName(c.subnet.Addr().BitLen())
			l.note(c, refuse(ReasonNoCommonFamily, "%s runs no overlayd and so sends %s over %s alone, of which this node has no underlay address", c.rec.Identity(), name, name))
		}
		if c.rec.Facts.source(c.vtep.Addr.Is6()).IsValid() {
			c.source = l.source(c)
		}
	}
}

func familyIndex(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

func (l *limits) note(c *claim, err error) {
	l.found = append(l.found, Rejection{Key: c.rec.key, Subnet: c.subnet, Node: c.rec.Identity(), Name: c.rec.Facts.Name, Err: err})
}

// source returns the outer source of c's packets, if it differs from the published address and
// may be c's: what one node says of itself must not cost another one its packets. Of two that say the
// same the older one has it.
func (l *limits) source(c *claim) netip.Addr {
	s := c.rec.Facts.source(c.vtep.Addr.Is6())
	if s == c.vtep.Addr {
		return netip.Addr{}
	}
	if l.owner == nil {
		l.owner, l.refused = map[netip.Addr]netip.Addr{}, map[netip.Addr]struct{}{}
	}
	own := l.a.self.VTEP(s.Is6()).Addr
	owner, taken := l.owner[s]
	err := dataplane.CheckSource(s, own, l.a.self.Facts.source(s.Is6()))
	switch {
	case err != nil:
		err = WithReason("source_unusable", fmt.Errorf("packets of %s: %w", c.vtep.Addr, err))
	case l.a.sources[s] == c.vtep.Addr: // it was used before
	case l.a.sources[s].IsValid():
		err = refuse("source_in_use", "packets of %s: their source %s is that of the node %s, which had it first", c.vtep.Addr, s, l.a.sources[s])
	case l.rib.isPublished(s):
		err = refuse("source_in_use", "packets of %s: their source %s is published by another node", c.vtep.Addr, s)
	case taken && owner != c.vtep.Addr:
		err = refuse("source_in_use", "packets of %s: their source %s is that of the older lease's node %s", c.vtep.Addr, s, owner)
	}
	if err != nil {
		if _, noted := l.refused[c.vtep.Addr]; !noted { // of a VTEP's subnets the first one has the note
			l.refused[c.vtep.Addr] = struct{}{}
			l.note(c, err)
		}
		return netip.Addr{}
	}
	l.owner[s] = c.vtep.Addr
	return s
}
