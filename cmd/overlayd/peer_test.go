package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// handMadePeer is a flannel-like host: a vxlan device made with netlink, as
// flannel makes it, and a lease in flannel's text. No overlayd runs there.
type handMadePeer struct {
	addr       netip.Addr // the peer's own address in its subnet
	key, value string
}

// makePeer prepares h as the peer that holds base/24 and reaches the subnet of other.
func makePeer(t *testing.T, h, other *host, base string, udpCSum bool) *handMadePeer {
	t.Helper()
	p := &handMadePeer{addr: netip.MustParseAddr(base)}
	remote := other.gateway().Masked()
	mac, err := net.ParseMAC(vtepMAC(other.c.get(other.key())))
	if err != nil {
		t.Fatal(err)
	}
	h.Must(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "flannel.1", 1450
		attrs.HardwareAddr = net.HardwareAddr{0x0e, 0x2a, 0, 0, 0, byte(h.addr.As4()[3])}
		dev := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, VtepDevIndex: eth0.Attrs().Index, SrcAddr: h.addr.AsSlice(), Port: 8472, UDPCSum: udpCSum}
		if err := netlink.LinkAdd(dev); err != nil {
			return fmt.Errorf("add vxlan: %w", err)
		}
		if err := netlink.LinkSetUp(dev); err != nil {
			return err
		}
		p.value = fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, h.addr, attrs.HardwareAddr)
		return wirePeer(dev.Index, remote, other.addr, mac)
	})
	h.Addr("flannel.1", base+"/32")
	p.key = fmt.Sprintf("%s%s-24", subnets, base)
	return p
}

// vtepMAC cuts the MAC out of a lease.
func vtepMAC(value string) string {
	_, mac, _ := strings.Cut(value, `"VtepMAC":"`)
	mac, _, _ = strings.Cut(mac, `"`)
	return mac
}

// wirePeer adds neighbour, FDB entry and route as flannel does.
func wirePeer(link int, subnet netip.Prefix, at netip.Addr, mac net.HardwareAddr) error {
	gw := subnet.Addr().AsSlice()
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: gw, HardwareAddr: mac}); err != nil {
		return fmt.Errorf("add neighbour: %w", err)
	}
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: at.AsSlice(), HardwareAddr: mac}); err != nil {
		return fmt.Errorf("add FDB entry: %w", err)
	}
	_, dst, err := net.ParseCIDR(subnet.String())
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: link, Dst: dst, Gw: gw, Flags: int(netlink.FLAG_ONLINK)})
}

// TestFlannelPeer: a hand-made flannel-like peer, with and without outer
// checksums, reaches an overlayd of either dataplane, and the lease that overlayd
// writes is flannel's text to the byte.
func TestFlannelPeer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		for _, csum := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/udpcsum=%v", mode, csum), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 2, testNetwork)
				h := c.hosts[0]
				h.up("--dataplane", mode, "--probe-interval=500ms")
				peer := makePeer(t, c.hosts[1], h, "10.5.250.0", csum)
				c.put(peer.key, peer.value)
				a := h.pod(0, 0)
				b := &pod{NS: c.hosts[1].NS, addr: peer.addr, addrs: []netip.Addr{peer.addr}}
				warmUp(t, a, b)
				checkPair(t, h, a, c.hosts[1], b, 20<<20)

				got := c.get(h.key())
				mac := vtepMAC(got)
				if device := hardwareAddr(t, h).String(); mode == modeKernel && mac != device {
					t.Errorf("the lease has MAC %s, the device %s", mac, device)
				}
				want := fmt.Sprintf(`{"PublicIP":"192.0.2.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, mac)
				if got != want {
					t.Errorf("lease\n%s, want\n%s", got, want)
				}
				eventually(t, patience, "the peer is probed", func() error { return seen(h, peer) })
			})
		}
	}
}

// TestPutLatency: a lease that is put is forwarded on within 50 ms.
func TestPutLatency(t *testing.T) {
	alone(t)
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			h.up("--dataplane", mode)
			var slowest []time.Duration
			for i := range 100 {
				took, err := putLatency(c, h, c.hosts[1].NS, i)
				if err != nil {
					t.Fatal(err)
				}
				slowest = append(slowest, took)
			}
			checkP99(t, slowest, netnstest.Within(50*time.Millisecond))
		})
	}
}

// putLatency puts a lease that points to an address on which a plain UDP socket
// listens, sends to the new subnet until the socket hears of it, and says how
// long that took.
func putLatency(c *cluster, h *host, at *netnstest.NS, i int) (time.Duration, error) {
	var wire, client net.PacketConn
	if err := at.Do(func() (err error) { wire, err = net.ListenPacket("udp4", "192.0.2.3:8472"); return err }); err != nil {
		return 0, err
	}
	defer wire.Close()
	if err := h.Do(func() (err error) { client, err = net.ListenPacket("udp4", ":0"); return err }); err != nil {
		return 0, err
	}
	defer client.Close()
	key := fmt.Sprintf("%s10.5.%d.0-24", subnets, 100+i)
	began := time.Now()
	c.put(key, fmt.Sprintf(`{"PublicIP":"192.0.2.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:01:%02x"}}`, i))
	defer c.delete(key)
	to := &net.UDPAddr{IP: net.IPv4(10, 5, byte(100+i), 9), Port: 9}
	buf := make([]byte, 2000)
	for time.Since(began) < 5*time.Second {
		client.WriteTo([]byte("x"), to) // refused until there is a route
		wire.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, _, err := wire.ReadFrom(buf)
		if err == nil && n > 22+20 && buf[22+16] == 10 && buf[22+18] == byte(100+i) {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("lease %s is not forwarded on after 5 s", key)
}

// seen checks what is known of a peer that is not an overlayd and forwards nothing: it answers, and the rest is unknown.
func seen(h *host, peer *handMadePeer) error {
	list, err := admin.NewClient(admin.Path(h.subnetFile)).Peers(h.c.t.Context(), peer.addr.String())
	if err != nil {
		return err
	}
	if len(list.Networks) != 1 || len(list.Networks[0].Peers) != 1 || list.Networks[0].Peers[0].Probe == nil {
		return fmt.Errorf("peers %+v", list)
	}
	if p := list.Networks[0].Peers[0].Probe; p.State != status.ProbeOK || p.RTTMicros == 0 || p.MTU != status.MTUOK || p.Forwards != status.Unknown {
		return fmt.Errorf("probe %+v", *p)
	}
	return nil
}
