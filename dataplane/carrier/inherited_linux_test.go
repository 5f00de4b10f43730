package carrier

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestInheritedSocketBeginsAtZero: what the kernel dropped at a socket before this process had it is not this carrier's count.
func TestInheritedSocketBeginsAtZero(t *testing.T) {
	n := netnstest.New(t)
	cfg := UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddrPort("127.0.0.1:8472")}
	open := func() (c *udpCarrier) {
		n.Must(func() (err error) {
			o := UDP(cfg)
			got, err := o.Open(1)
			if err == nil {
				c = got.(*udpCarrier)
			}
			return err
		})
		return c
	}
	count := func(c *udpCarrier) [2]uint64 {
		var s dataplane.Stats
		c.AddTo(&s)
		return [2]uint64{s.Drops[dataplane.DropQueueFull], s.Drops[dataplane.DropFlood]}
	}
	c := open()
	if err := c.SetFilter(&Filter{VNIs: []uint32{1}, Sources: []netip.Addr{}}); err != nil {
		t.Fatal(err)
	}
	var out net.Conn
	n.Must(func() (err error) { out, err = net.Dial("udp", cfg.Local.String()); return err })
	for range 2000 {
		if _, err := out.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(c); n[0]+n[1] == 0 {
		t.Fatal("nothing was dropped")
	}
	exports, err := c.Export()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, e := range exports {
		cfg.Inherited = append(cfg.Inherited, e.File)
	}
	next := open()
	defer next.Close()
	if got := count(next); got != [2]uint64{} {
		t.Errorf("the next carrier begins with queue full, flood: %d", got)
	}
}
