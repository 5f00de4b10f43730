package uplink

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// TestAskedAgain: a destination whose route the kernel could not be asked for is asked for at the next look, and not left to the sockets until
// routes change. What the kernel says, such as that there is no route, holds until then.
func TestAskedAgain(t *testing.T) {
	to := netip.MustParseAddr("198.51.100.1")
	u := &Uplink{cfg: Config{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddr("192.0.2.9")}, ways: map[netip.Addr]*way{}, hops: map[hop]*neighbour{}, generation: 1}
	ns := netnstest.New(t)
	for _, step := range []struct {
		fails, again bool
	}{{true, true}, {false, false}} {
		ns.Must(func() (err error) { u.conn, err = rtmsg.Open(); return err })
		defer u.conn.Close()
		if step.fails {
			u.conn.Close()
		}
		u.resolve([]Destination{{Addr: to}}, time.Now())
		if again := u.ways[to].generation != u.generation; again != step.again {
			t.Errorf("the exchange fails %t: asked again %t", step.fails, again)
		}
	}
}
