package userspace

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// transferBytes go each way: several superpackets. The race detector finds no more in more of the same.
var transferBytes = map[bool]int64{false: 1 << 20, true: 512 << 10}[netnstest.Raced]

// transfer moves transferBytes by TCP from one namespace to an address of
// another and as many back, and compares hashes.
func transfer(tb testing.TB, from, to *netnstest.NS, addr netip.Addr) {
	tb.Helper()
	var l net.Listener
	to.Must(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String()); return err })
	defer l.Close()
	deadline := time.Now().Add(30 * time.Second)
	l.(*net.TCPListener).SetDeadline(deadline)
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		c.SetDeadline(deadline)
		served <- errors.Join(receiveAll(c, 1), sendAll(c, 2))
	}()
	c := dial(from, l.Addr().String(), time.Now().Add(10*time.Second))
	defer c.Close()
	c.SetDeadline(deadline)
	start := time.Now()
	if err := errors.Join(sendAll(c, 1), receiveAll(c, 2), <-served); err != nil {
		tb.Fatalf("TCP to %s: %v", addr, err)
	}
	tb.Logf("TCP to %s and back: %.2f Gbit/s", addr, float64(2*transferBytes*8)/float64(time.Since(start).Nanoseconds()))
}

// dial connects. On a busy machine a neighbour may answer later than the kernel waits for it: then it is asked again.
func dial(from *netnstest.NS, to string, deadline time.Time) (c net.Conn) {
	from.Must(func() (err error) {
		for {
			c, err = net.DialTimeout("tcp", to, time.Until(deadline))
			if !errors.Is(err, unix.EHOSTUNREACH) || time.Now().After(deadline) {
				return err
			}
		}
	})
	return c
}

// stream returns bytes that are the same for the same seed.
func stream(seed byte) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), transferBytes)
}

func sendAll(c net.Conn, seed byte) error {
	_, err := io.Copy(c, stream(seed))
	return err
}

func receiveAll(c net.Conn, seed byte) error {
	table := crc32.MakeTable(crc32.Castagnoli)
	want, got := crc32.New(table), crc32.New(table)
	io.Copy(want, stream(seed))
	if _, err := io.CopyN(got, c, transferBytes); err != nil {
		return err
	}
	if !bytes.Equal(want.Sum(nil), got.Sum(nil)) {
		return errors.New("the bytes arrived changed")
	}
	return nil
}

// echo sends datagrams of several sizes from one namespace to an address of
// another, which echoes them, and verifies what comes back.
func echo(tb testing.TB, from, to *netnstest.NS, addr netip.Addr) {
	tb.Helper()
	var server, client net.PacketConn
	to.Must(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		for buf := make([]byte, 1<<16); ; {
			n, who, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(buf[:n], who)
		}
	}()
	defer func() { server.Close(); <-echoed }()
	network := map[bool]string{true: "udp4", false: "udp6"}[addr.Is4()]
	from.Must(func() (err error) { client, err = net.ListenPacket(network, ":0"); return err })
	defer client.Close()
	for _, size := range []int{1, 2, 1000, 1382, 1383, 1400, 1402, 1403, 1422, 1423, 9000} { // around MTU 1430 and 1450
		if err := echoOne(client, server.LocalAddr(), size); err != nil {
			tb.Fatalf("UDP of %d bytes to %s: %v", size, addr, err)
		}
	}
}

// patienceOf is how long the try-th packet that is sent again and again may be on its way: the first may be lost to a path that is narrow.
func patienceOf(try int) time.Duration { return min(40*time.Millisecond<<try, 600*time.Millisecond) }

// echoOne sends one datagram, again if it is lost, and waits for it to come back.
func echoOne(c net.PacketConn, to net.Addr, size int) error {
	want, got := make([]byte, size), make([]byte, 1<<16)
	stream(byte(size)).Read(want)
	for try := range 20 {
		if _, err := c.WriteTo(want, to); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(patienceOf(try)))
		for {
			n, _, err := c.ReadFrom(got)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			earlier := make([]byte, n) // of another size: sent twice on a busy machine, and late
			stream(byte(n)).Read(earlier)
			switch {
			case bytes.Equal(want, got[:n]):
				return nil
			case n == size || !bytes.Equal(earlier, got[:n]):
				return fmt.Errorf("the %d bytes came back changed, %d", size, n)
			}
		}
	}
	return errors.New("no answer to 20 of them")
}

// both moves TCP and UDP between all ends of two hosts, each starting.
func both(t *testing.T, a, b *testHost) {
	for _, way := range []struct{ from, to *testHost }{{a, b}, {b, a}} {
		for _, src := range []*netnstest.NS{way.from.pod, way.from.NS} {
			echo(t, src, way.to.pod, way.to.podAddr())
			transfer(t, src, way.to.pod, way.to.podAddr())
		}
		echo(t, way.from.pod, way.to.NS, way.to.subnet.Addr())
	}
}

func TestTrafficWithKernelPeer(t *testing.T) {
	for _, udpcsum := range []bool{true, false} {
		for _, podMTU := range []int{testMTU, 1400} {
			t.Run(fmt.Sprintf("udpcsum=%t/podMTU=%d", udpcsum, podMTU), func(t *testing.T) {
				hosts := newHosts(t, 2, podMTU)
				a, b := hosts[0], hosts[1]
				d := a.open()
				b.vxlan(udpcsum)
				a.sync(d, b)
				b.vxlanPeer(a)
				a.run(d)
				both(t, a, b)
				t.Log(d.Stats())
			})
		}
	}
}

// connect makes a userspace dataplane on a, and on b a userspace one or a vxlan device.
func connect(a, b *testHost, kernel bool) (da *Dataplane) {
	da = a.open()
	if kernel {
		b.vxlan(true)
	} else {
		db := b.open()
		b.sync(db, a)
		b.run(db)
	}
	a.sync(da, b)
	if kernel {
		b.vxlanPeer(a)
	}
	a.run(da)
	return da
}

// TestTrafficWithOffloads has every combination of offloads, against both kinds of peers.
func TestTrafficWithOffloads(t *testing.T) {
	t.Parallel()
	var sets []Offloads
	for set := range AllOffloads + 1 {
		if set.has(TUNVnet) || set&(TUNGSO|TUNMultiqueue|Coalesce) == 0 { // which need it
			sets = append(sets, set)
		}
	}
	for _, set := range sets {
		for peer, kernel := range map[string]bool{"kernel": true, "userspace": false} {
			t.Run(fmt.Sprintf("%s/%s", set, peer), func(t *testing.T) {
				t.Parallel() // hosts of its own
				hosts := newHosts(t, 2, testMTU)
				a, b := hosts[0], hosts[1]
				a.offloads = set
				d := connect(a, b, kernel)
				both(t, a, b)
				for _, way := range []struct{ from, to *testHost }{{a, b}, {b, a}} {
					segmented(t, way.from.pod, way.to, way.to.podAddr())
				}
				t.Logf("%+v", d.Stats())
			})
		}
	}
}

func TestTrafficBetweenUserspacePeers(t *testing.T) {
	for _, podMTU := range []int{testMTU, 1400} {
		t.Run(fmt.Sprintf("podMTU=%d", podMTU), func(t *testing.T) {
			hosts := newHosts(t, 2, podMTU)
			a, b := hosts[0], hosts[1]
			da, db := a.open(), b.open()
			a.sync(da, b)
			b.sync(db, a)
			a.run(da)
			b.run(db)
			both(t, a, b)
			t.Log(da.Stats())
		})
	}
}

// segmented sends 120 datagrams of 1000 bytes by UDP_SEGMENT, 40 at a time, which
// cross the host as UDP superpackets, and wants each of them to arrive as it was.
func segmented(tb testing.TB, from *netnstest.NS, to *testHost, addr netip.Addr) {
	tb.Helper()
	const size, perSend, sends = 1000, 40, 3
	var server, client *net.UDPConn
	to.pod.Must(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	defer server.Close()
	from.Must(func() (err error) {
		client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
		return err
	})
	defer client.Close()
	if err := setSegment(client, size); err != nil {
		tb.Fatal(err)
	}
	got, buf := 0, make([]byte, 1<<16)
	for i := range sends {
		want := make([]byte, size*perSend)
		stream(byte(i)).Read(want)
		if _, err := client.Write(want); err != nil {
			tb.Fatal(err)
		}
		for j := range perSend {
			server.SetReadDeadline(time.Now().Add(2 * time.Second))
			n, err := server.Read(buf)
			if err != nil {
				tb.Errorf("after %d datagrams: %v", got, err)
				return
			}
			if !bytes.Equal(buf[:n], want[j*size:(j+1)*size]) {
				tb.Errorf("datagram %d arrived changed, %d bytes", got, n)
			}
			got++
		}
	}
}

func setSegment(c *net.UDPConn, size int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) })
	return errors.Join(err, serr)
}

// TestTrafficWithSenderOffloadsOff turns off, at the sending pod and on the
// underlay of its host, what a network card may lack.
func TestTrafficWithSenderOffloadsOff(t *testing.T) {
	for name, command := range map[string]uint32{
		"tx":  unix.ETHTOOL_STXCSUM,
		"gso": unix.ETHTOOL_SGSO,
		"tso": unix.ETHTOOL_STSO,
		"gro": unix.ETHTOOL_SGRO,
	} {
		for peer, kernel := range map[string]bool{"kernel": true, "userspace": false} {
			t.Run(name+"/"+peer, func(t *testing.T) {
				hosts := newHosts(t, 2, testMTU)
				for _, h := range hosts {
					off := func() error { return ethtool("eth0", command, 0) }
					h.Must(off)
					h.pod.Must(off)
				}
				connect(hosts[0], hosts[1], kernel)
				both(t, hosts[0], hosts[1])
				segmented(t, hosts[1].pod, hosts[0], hosts[0].podAddr())
			})
		}
	}
}

// ethtool does one of the ethtool ioctls that set a value (linux/ethtool.h).
func ethtool(link string, command, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	arg := [2]uint32{command, value}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:], link)
	req.data = unsafe.Pointer(&arg)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("ethtool %s %#x: %w", link, command, errno)
	}
	return nil
}

// TestSmallPodMTUKeepsRate compares a pod with MTU 1400 to one with all of it: a
// segment size above what a pod takes would stop TCP nearly whole. They take turns, more often on a busy machine.
func TestSmallPodMTUKeepsRate(t *testing.T) {
	var hosts [2][]*testHost
	for i, mtu := range []int{testMTU, 1400} {
		hosts[i] = newHosts(t, 2, mtu)
		connect(hosts[i][0], hosts[i][1], true)
	}
	best := [2]time.Duration{time.Hour, time.Hour}
	for round := 0; round < 5 || round < 20 && best[1] > 2*best[0]; round++ {
		for i, h := range hosts {
			start := time.Now()
			transfer(t, h[0].pod, h[1].pod, h[1].podAddr())
			best[i] = min(best[i], time.Since(start))
		}
	}
	if best[1] > 2*best[0] {
		t.Errorf("%v with the small MTU, %v with the full one", best[1], best[0])
	}
}
