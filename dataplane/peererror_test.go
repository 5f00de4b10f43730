package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

func TestPeerErrors(t *testing.T) {
	p := func(i int) error {
		return &PeerError{Peer: Peer{Subnets: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.3.%d.0/24", i))}}, Err: errors.New("x")}
	}
	down := errors.New("device is gone")
	for _, tt := range []struct {
		name  string
		err   error
		peers int
		rest  bool
	}{
		{"nil", nil, 0, false},
		{"one", p(1), 1, false},
		{"joined", errors.Join(p(1), errors.Join(p(2), p(3))), 3, false},
		{"wrapped", fmt.Errorf("sync: %w", errors.Join(p(1), p(2))), 2, false},
		{"device", down, 0, true},
		{"both", errors.Join(p(1), down, p(2)), 2, true},
		{"both in one wrapping", fmt.Errorf("sync: %w", errors.Join(p(1), down)), 0, true},
		{"two wrapped at once", fmt.Errorf("%w and %w", p(1), p(2)), 2, false},
	} {
		peers, rest := PeerErrors(tt.err)
		if len(peers) != tt.peers || (rest != nil) != tt.rest || (tt.rest && !errors.Is(rest, down)) {
			t.Errorf("%s: %d peers, rest %v", tt.name, len(peers), rest)
		}
	}
}
