package embedded

import (
	"net"
	"net/netip"
	"testing"
)

// TestSources: of an address that asks for too much the connection with most is closed, what is under way counts until it has ended, and
// other addresses are left alone.
func TestSources(t *testing.T) {
	t.Parallel()
	s := &sources{max: 80, all: map[netip.Addr]*source{}}
	tracker := newConnTracker()
	tracker.ended = s.forget
	made := func(from string) *trackedConn {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		return &trackedConn{Conn: a, tracker: tracker, address: from, from: netip.MustParseAddr(from)}
	}
	greedy, quiet, other := made("192.0.2.1"), made("192.0.2.1"), made("192.0.2.2")
	for _, c := range []struct {
		conn  *trackedConn
		units int
		ok    bool
		gone  bool // greedy is closed
	}{
		{greedy, 72, true, false},
		{other, 80, true, false},
		{quiet, 8, true, false},
		{quiet, 1, true, true},
		{quiet, 1, false, true}, // those of greedy have not ended
		{greedy, 1, false, true},
	} {
		err := s.take(c.conn, c.units)
		if (err == nil) != c.ok || greedy.gone != c.gone || quiet.gone || other.gone {
			t.Fatalf("%d units: %v; closed: %v, %v, %v", c.units, err, greedy.gone, quiet.gone, other.gone)
		}
	}
	s.end(greedy, 72)
	if err := s.take(quiet, 1); err != nil {
		t.Errorf("after the end of the others: %v", err)
	}
	s.end(quiet, 10)
	s.end(other, 80)
	if len(s.all) > 0 {
		t.Errorf("%d addresses are remembered", len(s.all))
	}
}
