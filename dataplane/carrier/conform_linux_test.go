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

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/carrier/carriertest"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
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
				carriertest.Sender(t, c.NewSender(), e, 108, true, func() []byte {
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

// TestTunnelConforms runs the suites of sender and receiver over an uplink. The link takes nothing as long as a superpacket
// of the suite, so the kernel cuts these.
func TestTunnelConforms(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{{"192.0.2.1/24", "192.0.2.2/24"}, {"2001:db8::1/64", "2001:db8::2/64"}} {
		t.Run(pair[0], func(t *testing.T) {
			a, b := netnstest.New(t), netnstest.New(t)
			netnstest.Link(a, "eth0", b, "eth0")
			a.Addr("eth0", pair[0])
			b.Addr("eth0", pair[1])
			a.Must(func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return errors.Join(netlink.LinkSetGSOMaxSize(l, 2000), netlink.LinkSetGSOIPv4MaxSize(l, 2000))
			})
			from := netip.AddrPortFrom(netip.MustParsePrefix(pair[0]).Addr(), testPort)
			to := netip.AddrPortFrom(netip.MustParsePrefix(pair[1]).Addr(), testPort)
			opener := carrier.Tunnel(carrier.UDPConfig{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Local: from, Segment: true, GRO: true})
			var c carrier.Carrier
			var sink, source *net.UDPConn
			a.Must(func() (err error) { c, err = opener.Open(1); return err })
			defer c.Close()
			b.Must(func() (err error) {
				if sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)); err == nil {
					source, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(from))
				}
				return err
			})
			defer sink.Close()
			defer source.Close()
			sink.SetReadDeadline(time.Now().Add(5 * time.Second))
			entries := make([]carrier.Entry, 1)
			carrier.NewPeer(to).Adopt(&entries[0], true)
			out := func() []byte {
				b := make([]byte, carrier.MaxPacket)
				n, err := sink.Read(b)
				if err != nil {
					t.Error(err)
					return make([]byte, encap.HeaderLen+60)
				}
				var ip encap.IP
				if encap.ParseIP(b[encap.HeaderLen:n], &ip) == nil && encap.IsPartial(b[encap.HeaderLen:n], &ip) {
					encap.CompleteChecksum(b[encap.HeaderLen:n], &ip) // between namespaces nobody does
				}
				return b[:n]
			}
			for range 2 { // the first superpackets go by the sockets; then there is a way
				carriertest.Sender(t, c.NewSender(), &entries[0], opener.Headroom, true, out)
				c.Refresh(entries, 1400)
			}
			carriertest.Receiver(t, c.Receivers()[0], func(b []byte) {
				if _, err := source.Write(b); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
