package carrier_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/carrier/carriertest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

const testPort = 8472

// TestUDPConforms runs the suites of sender and receiver over UDP sockets.
func TestUDPConforms(t *testing.T) {
	for _, offloads := range []bool{false, true} {
		for _, s := range []string{"127.0.0.1", "::1"} {
			t.Run(fmt.Sprintf("offloads=%t/%s", offloads, s), func(t *testing.T) {
				addr := netip.MustParseAddr(s)
				n := netnstest.New(t)
				c := openCarrier(t, n, addr, offloads)
				var sink, source *net.UDPConn
				n.Must(func() (err error) {
					if sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))); err != nil {
						return err
					}
					source, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, testPort)))
					return err
				})
				defer sink.Close()
				defer source.Close()
				sink.SetReadDeadline(time.Now().Add(5 * time.Second))
				e := &carrier.Entry{Peer: carrier.NewPeer(sink.LocalAddr().(*net.UDPAddr).AddrPort())}
				carriertest.Sender(t, c.NewSender(0), e, 108, true, func() []byte {
					b := make([]byte, carrier.MaxPacket)
					n, err := sink.Read(b)
					if err != nil {
						t.Error(err)
					}
					return b[:n]
				})
				r := c.Receivers()[0]
				carriertest.Receiver(t, r, func(b []byte) {
					if _, err := source.Write(b); err != nil {
						t.Error(err)
					}
				})
				if err := r.Receive(new(carrier.Datagram), func() {}); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("Receive after stop: %v", err)
				}
			})
		}
	}
}

// openCarrier opens the UDP carrier of an address.
func openCarrier(t *testing.T, n *netnstest.NS, addr netip.Addr, offloads bool) (c carrier.Carrier) {
	t.Helper()
	n.Must(func() (err error) {
		cfg := carrier.UDPConfig{Log: slog.New(slog.DiscardHandler), Local: netip.AddrPortFrom(addr, testPort), Segment: offloads, GRO: offloads}
		c, err = carrier.UDP(cfg).Open(1)
		return err
	})
	t.Cleanup(c.Close)
	return c
}
