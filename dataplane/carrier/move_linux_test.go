package carrier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestPortChangesHands: while a carrier leaves its port, another one has it, and the carrier takes it
// back, every datagram that comes to the port arrives, once. So it is if the sockets are another carrier's.
func TestPortChangesHands(t *testing.T) {
	for _, test := range []struct {
		addr      string
		inherited bool
	}{{"127.0.0.1", false}, {"::1", false}, {"127.0.0.1", true}} {
		t.Run(fmt.Sprintf("%s/inherited=%t", test.addr, test.inherited), func(t *testing.T) {
			n, at := netnstest.New(t), netip.AddrPortFrom(netip.MustParseAddr(test.addr), testPort)
			cfg := UDPConfig{Log: slog.New(slog.DiscardHandler), Local: at, Segment: true, GRO: true}
			var c *udpCarrier
			var from *net.UDPConn
			n.Must(func() error {
				var err error
				if test.inherited {
					cfg.Inherited = exportedSockets(t, cfg)
				}
				if c, err = openUDPCarrier(cfg, at, 2); err == nil {
					from, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 0)))
				}
				return err
			})
			got, ended := make(chan uint32, 1<<16), make(chan error, 2)
			for _, r := range c.in {
				go func() { ended <- collect(r, got) }()
			}
			sent := make(chan uint32)
			stop := make(chan struct{})
			go sendNumbers(from, at, sent, stop)
			for range 3 {
				n.Must(func() error {
					if err := c.Leave(); err != nil {
						return err
					}
					holder, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
					if err != nil {
						return err
					}
					holder.Close()
					return c.Arrive()
				})
			}
			close(stop)
			count := <-sent
			seen := map[uint32]int{}
			for late := time.After(5 * time.Second); len(seen) < int(count); {
				select {
				case i := <-got:
					seen[i]++
				case <-late:
					t.Fatalf("%d of %d datagrams have arrived", len(seen), count)
				}
			}
			for i, times := range seen {
				if times > 1 {
					t.Errorf("datagram %d has arrived %d times", i, times)
				}
			}
			for _, r := range c.in {
				r.Stop()
				if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
			}
			c.Close()
			from.Close()
		})
	}
}

// TestInheritedBeside: a carrier with inherited sockets keeps the port, also when OpenBeside opens it. A second OpenBeside opens new sockets.
func TestInheritedBeside(t *testing.T) {
	n := netnstest.New(t)
	cfg := UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testPort), GRO: true}
	n.Must(func() error {
		cfg.Inherited = exportedSockets(t, cfg)
		o := UDP(cfg)
		for range 2 {
			c, err := o.OpenBeside(2)
			if err != nil {
				return err
			}
			m := c.(*udpCarrier)
			if at, err := m.in[0].now.addr(); err != nil || (at.Port() == testPort) != (m.detour == nil) {
				t.Errorf("it receives at %s, detour %v, %v", at, m.detour, err)
			}
			if err := m.Arrive(); err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
}

// TestClosedTwice: the second time closes nothing, although others have descriptors of the same numbers by then. It runs alone, so
// that these are its own.
func TestClosedTwice(t *testing.T) {
	for _, open := range []func(UDPConfig) Opener{UDP, Tunnel} {
		c, err := open(UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddrPort("127.0.0.1:0"), DF: true}).Open(2)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		var files []*os.File
		for range 100 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files = append(files, f)
		}
		c.Close()
		for _, f := range files {
			if _, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil {
				t.Errorf("%T has closed descriptor %d of somebody else: %v", c, f.Fd(), err)
			}
		}
	}
}

// exportedSockets are those of a carrier that is closed since.
func exportedSockets(t *testing.T, cfg UDPConfig) (files []*os.File) {
	t.Helper()
	c, err := openUDPCarrier(cfg, cfg.Local, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exports, err := c.Export()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exports {
		files = append(files, e.File)
	}
	return files
}

// collect receives numbers until the receiver is stopped.
func collect(r Receiver, got chan<- uint32) error {
	var d Datagram
	for {
		if err := r.Receive(&d, func() {}); err != nil {
			return err
		}
		got <- binary.BigEndian.Uint32(d.Buf)
	}
}

// sendNumbers sends numbers until stop is closed, and then tells how many.
func sendNumbers(from *net.UDPConn, to netip.AddrPort, sent chan<- uint32, stop <-chan struct{}) {
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for i := uint32(0); ; i++ {
		select {
		case <-stop:
			sent <- i
			return
		case <-tick.C:
		}
		from.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, i), to) // a refusal shows as loss
	}
}
