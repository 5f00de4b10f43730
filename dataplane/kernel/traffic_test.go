package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// join opens both hosts with the subnets 10.5.1.0/24 and 10.5.2.0/24 and makes
// them peers.
func join(t *testing.T, hosts []*host) (a, b *host) {
	t.Helper()
	a, b = hosts[0].open(), hosts[1].open()
	a.sync(wanted(dataplane.Peer{VTEP: b.dp.VTEPs()[0], Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}}))
	w := wanted(dataplane.Peer{VTEP: a.dp.VTEPs()[0], Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}})
	w.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}
	b.sync(w)
	return a, b
}

// listen binds a UDP socket in the host, and closes it with the test.
func (h *host) listen(addr string) *net.UDPConn {
	h.tb.Helper()
	var c *net.UDPConn
	h.Must(func() (err error) {
		if c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))); err != nil {
			return err
		}
		return netnstest.HoldBurst(c)
	})
	h.tb.Cleanup(func() { c.Close() })
	return c
}

// echo sends size bytes from 10.5.1.0 to 10.5.2.0 and back.
func echo(t *testing.T, a, b *host, size int, timeout time.Duration) {
	t.Helper()
	client, server := a.listen("10.5.1.0:0"), b.listen("10.5.2.0:0")
	defer client.Close()
	defer server.Close()
	if err := exchange(client, server, size, timeout); err != nil {
		t.Fatal(err)
	}
}

func exchange(client, server *net.UDPConn, size int, timeout time.Duration) error {
	payload := bytes.Repeat([]byte("overlay"), size/7+1)[:size]
	deadline := time.Now().Add(timeout)
	buf := make([]byte, 64<<10)
	hop := func(from, to *net.UDPConn) error {
		if _, err := from.WriteTo(payload, to.LocalAddr()); err != nil {
			return err
		}
		to.SetReadDeadline(deadline)
		n, source, err := to.ReadFrom(buf)
		if err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], payload) || source.String() != from.LocalAddr().String() {
			return fmt.Errorf("got %d bytes from %v, want %d from %v", n, source, size, from.LocalAddr())
		}
		return nil
	}
	if err := hop(client, server); err != nil {
		return fmt.Errorf("%d bytes there: %w", size, err)
	}
	if err := hop(server, client); err != nil {
		return fmt.Errorf("%d bytes back: %w", size, err)
	}
	return nil
}

func TestTrafficBetweenTwoHosts(t *testing.T) {
	a, b := join(t, newHosts(t, 2))
	for _, size := range []int{1, 1000, 1400, 9000, 60000} {
		echo(t, a, b, size, 5*time.Second)
	}
}

func TestTrafficWithAHandMadeFlannelPeer(t *testing.T) {
	for _, sum := range []string{"udpcsum", "noudpcsum"} {
		hosts := newHosts(t, 2)
		a, b := hosts[0].open(), hosts[1]
		b.Run("ip", "link", "add", "flannel.1", "address", "0e:2a:00:00:00:02", "mtu", "1450", "type", "vxlan", "id", "1",
			"local", "192.0.2.3", "dev", "eth0", "dstport", "8472", "nolearning", sum)
		b.Run("ip", "addr", "add", "10.5.2.0/32", "dev", "flannel.1")
		b.Run("ip", "link", "set", "flannel.1", "up")
		mac := a.dp.VTEPs()[0].MAC.String()
		b.Run("ip", "neigh", "add", "10.5.1.0", "lladdr", mac, "dev", "flannel.1", "nud", "permanent")
		b.Run("bridge", "fdb", "add", mac, "dst", "192.0.2.2", "dev", "flannel.1")
		b.Run("ip", "route", "add", "10.5.1.0/24", "via", "10.5.1.0", "dev", "flannel.1", "onlink")
		a.sync(wanted(newPeer("192.0.2.3", "0e:2a:00:00:00:02", "10.5.2.0/24")))
		for _, size := range []int{1, 1400, 9000} {
			echo(t, a, b, size, 5*time.Second)
		}
	}
}

// stream sends a datagram from a to b each millisecond until stop is closed, and fails if one does not arrive, one arrives twice, or none is sent.
func stream(a, b *net.UDPConn, begun func(), stop chan struct{}) error {
	var got atomic.Uint64
	var arrived sync.Map // by number
	go func() {
		for buf := make([]byte, 64); ; got.Add(1) {
			if _, err := b.Read(buf); err != nil {
				return
			}
			arrived.Store(binary.BigEndian.Uint64(buf), true)
		}
	}()
	start := time.Now()
	var sent []time.Duration
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-stop:
			running = false
		case <-tick.C:
			if _, err := a.WriteTo(binary.BigEndian.AppendUint64(nil, uint64(len(sent))), b.LocalAddr()); err != nil {
				return err
			}
			sent = append(sent, time.Since(start))
			begun()
		}
	}
	netnstest.AwaitArrival(uint64(len(sent)), got.Load)
	b.SetReadDeadline(time.Now())
	var lost []string
	for i, when := range sent {
		if _, ok := arrived.Load(uint64(i)); !ok {
			lost = append(lost, fmt.Sprintf("number %d, sent by %s", i, when))
		}
	}
	if n := got.Load(); len(lost) > 0 || n != uint64(len(sent)) || n == 0 {
		return fmt.Errorf("%s to %s since %s: sent %d, received %d, lost %d: %s",
			a.LocalAddr(), b.LocalAddr(), start.Format(time.StampMicro), len(sent), n, len(lost), strings.Join(lost, "; "))
	}
	return nil
}

// withStream runs change while datagrams go from a to b, and fails the test if any is lost.
func withStream(t *testing.T, a, b *host, change func()) {
	t.Helper()
	withStreamOf(t, a, b, "10.5.1.0", "10.5.2.0", change)
}

func withStreamOf(t testing.TB, a, b *host, from, to string, change func()) {
	t.Helper()
	client := a.listen(netip.AddrPortFrom(netip.MustParseAddr(from), 0).String())
	server := b.listen(netip.AddrPortFrom(netip.MustParseAddr(to), 0).String())
	if err := exchange(client, server, 1, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	server.SetReadDeadline(time.Time{})
	started, stop := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(started) })
	result := make(chan error, 1)
	go func() {
		defer begun()
		result <- stream(client, server, begun, stop)
	}()
	<-started // or the change may be over before
	change()
	close(stop)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestTakeOverFromFlannelWithoutLoss(t *testing.T) {
	hosts := newHosts(t, 2)
	a, b := join(t, hosts)
	peer := dataplane.Peer{VTEP: b.dp.VTEPs()[0], Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}}
	// Make it what flannel would have left.
	flannel := func() {
		a.Run("ip", "route", "replace", "10.5.2.0/24", "via", "10.5.2.0", "dev", "flannel.1", "onlink")
		a.Run("ip", "nexthop", "flush", "proto", "211")
	}
	flannel()
	withStream(t, a, b, func() {
		for range 5 {
			a.dp.Close()
			a.open()
			a.sync(wanted(peer, peerC))
			a.expect(wanted(peer, peerC))
			flannel()
		}
	})
}

func TestMACChangeKeepsTraffic(t *testing.T) {
	hosts := newHosts(t, 2)
	a, b := join(t, hosts)
	peer := dataplane.Peer{VTEP: b.dp.VTEPs()[0], Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}}
	old := peer
	old.MAC = mustMAC("0e:00:00:00:00:bb")
	a.sync(wanted(old))
	client, server := a.listen("10.5.1.0:0"), b.listen("10.5.2.0:0")
	a.sync(wanted(peer))
	a.expect(wanted(peer)) // the old FDB entry is gone
	if err := exchange(client, server, 100, 5*time.Second); err != nil {
		t.Error(err)
	}
}
