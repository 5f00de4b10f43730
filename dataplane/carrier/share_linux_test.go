package carrier

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/encap"
)

// TestEveryPortTaken: a carrier can be opened while a user of the host has all UDP ports but its own. It sends from that one, and gives it to others.
// It has several ports once there are some.
func TestEveryPortTaken(t *testing.T) {
	t.Parallel()
	for _, local := range []string{"127.0.0.1", "::1"} {
		t.Run(local, func(t *testing.T) {
			t.Parallel()
			n, at := netnstest.New(t), netip.AddrPortFrom(netip.MustParseAddr(local), testPort)
			var own *net.UDPConn
			listen := func() (err error) {
				own, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
				return err
			}
			n.Must(listen)
			free := n.TakePorts(t, "")
			own.Close()
			n.Must(func() error {
				if _, err := udp.Open(netip.AddrPortFrom(at.Addr(), 0), 0); !errors.Is(err, udp.ErrNoPort) {
					t.Fatalf("there are ports left: %v", err)
				}
				return nil
			})
			var log netnstest.Log
			var c *udpCarrier
			n.Must(func() (err error) {
				c, err = openUDPCarrier(UDPConfig{Log: slog.New(slog.NewTextHandler(&log, nil)), Local: at, Segment: true, GRO: true, DF: true, Mark: 0x100000}, at, 2)
				return err
			})
			defer c.Close()
			snd, e := c.NewSender(), entryTo(at)
			got, ended := make(chan Datagram), make(chan error, len(c.in))
			for _, r := range c.in {
				go func() {
					var d Datagram
					for {
						if err := r.Receive(&d, func() {}); err != nil {
							ended <- err
							return
						}
						got <- Datagram{From: d.From, Buf: make([]byte, len(d.Buf))}
					}
				}()
			}
			var counters Counters
			carry := func(size, times int) {
				t.Helper()
				for range times {
					p := blank(size)
					snd.Send(&p, e, false, &counters)
				}
				snd.Flush(&counters)
				for i := range times {
					select {
					case d := <-got:
						if d.From != at.Addr() || len(d.Buf) != encap.HeaderLen+size {
							t.Errorf("%d bytes from %s", len(d.Buf), d.From)
						}
					case <-time.After(10 * time.Second):
						t.Fatalf("%d datagrams of %d have arrived", i, times)
					}
				}
			}
			ports := func() (n int) {
				all := map[uint16]bool{}
				for _, fd := range c.out.fds {
					a, err := udp.LocalAddr(fd)
					if err != nil {
						t.Fatal(err)
					}
					all[a.Port()] = true
				}
				return len(all)
			}
			look := func() {
				c.out.mu.Lock()
				c.out.tried = time.Time{}
				c.out.mu.Unlock()
				n.Must(func() error { c.Refresh(nil, 1400); return nil })
			}
			const begun, over = "every UDP port of this host is taken", "there are UDP ports again"
			carry(1400, 50)
			carry(20000, 1)
			look()
			carry(1400, 50)
			if ports() != 1 || c.out.isSpread() || c.out.ports[0].Load() != 0 || log.Count(begun) != 1 || log.Count("ss -Huanp") != 1 {
				t.Errorf("%d ports, log:\n%s", ports(), &log)
			}
			if c.out.limit().Datagrams < encap.MaxRunDatagrams {
				t.Error("no UDP_SEGMENT")
			}
			free()
			n.Must(func() error {
				if err := c.Leave(); err != nil {
					return err
				}
				return listen()
			})
			own.Close()
			n.Must(c.Arrive)
			carry(1400, 50)
			if ports() != 1 {
				t.Errorf("%d ports of a carrier that shares one", ports())
			}
			look()
			look()
			carry(1400, 50)
			if ports() != sourcePorts+1 || !c.out.isSpread() || c.out.ports[0].Load() == 0 || c.out.paths.Load() == nil || log.Count(over) != 1 {
				t.Errorf("then %d ports, log:\n%s", ports(), &log)
			}
			if c.out.limit().Datagrams < encap.MaxRunDatagrams {
				t.Error("then no UDP_SEGMENT")
			}
			for _, r := range c.in {
				r.Stop()
				if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
			}
			counters.Publish()
			var s dataplane.Stats
			counters.AddTo(&s.TxPackets, &s.TxBytes, &s)
			if s.TxPackets != 201 || s.Drops != [dataplane.NumDrops]uint64{} {
				t.Errorf("counted %+v", s)
			}
		})
	}
}
