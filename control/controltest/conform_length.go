package controltest

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
)

// besideOtherLengths: leases of a length that no known config has had keep a node neither from a new subnet nor from its own; one of a
// length that is known does.
func besideOtherLengths(t *testing.T, h Harness) {
	h.SetConfig(t, []byte(config))
	for i, key := range []string{"10.3.0.0-17", "10.3.128.0-17"} {
		h.PutRaw(t, key, foreign(8+i))
	}
	n, vteps := node(1)
	n.Lengths = new(control.Lengths)
	s := h.Open(t)
	l, err := s.Acquire(t.Context(), n, vteps)
	if err != nil {
		t.Fatalf("beside two halves of the network: %v", err)
	}
	h.DeleteRaw(t, l.Key())
	part := control.Lease{Subnet: netip.PrefixFrom(l.Subnet.Addr(), 27)}.Key()
	h.PutRaw(t, part, foreign(7))
	if l, err = s.Renew(t.Context(), l); err != nil {
		t.Fatalf("put back beside a part of it: %v", err)
	}
	checkStored(t, h, l)

	n2, vteps2 := node(2)
	known := control.ParseLengths("0.0.0.0/17")
	n2.Lengths = &known
	if l, err := h.Open(t).Acquire(t.Context(), n2, vteps2); !errors.Is(err, control.ErrNoSubnet) {
		t.Errorf("beside two halves of a known length: %s, %v", l.CIDRs(), err)
	}
}
