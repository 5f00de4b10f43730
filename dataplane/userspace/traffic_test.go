package userspace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

const transferBytes = 20 << 20

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
	var c net.Conn
	from.Must(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second); return err })
	defer c.Close()
	c.SetDeadline(deadline)
	start := time.Now()
	if err := errors.Join(sendAll(c, 1), receiveAll(c, 2), <-served); err != nil {
		tb.Fatalf("TCP to %s: %v", addr, err)
	}
	tb.Logf("TCP to %s and back: %.2f Gbit/s", addr, 2*transferBytes*8/float64(time.Since(start).Nanoseconds()))
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
	want, got := sha256.New(), sha256.New()
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
	from.Must(func() (err error) { client, err = net.ListenPacket("udp4", ":0"); return err })
	defer client.Close()
	for _, size := range []int{1, 1000, 1400, 9000} {
		if err := echoOne(client, server.LocalAddr(), size); err != nil {
			tb.Fatalf("UDP of %d bytes to %s: %v", size, addr, err)
		}
	}
}

// echoOne sends one datagram, again if it is lost, and waits for it to come back.
func echoOne(c net.PacketConn, to net.Addr, size int) error {
	want, got := make([]byte, size), make([]byte, 1<<16)
	stream(byte(size)).Read(want)
	for range 20 {
		if _, err := c.WriteTo(want, to); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		n, _, err := c.ReadFrom(got)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(want, got[:n]) {
			return fmt.Errorf("the %d bytes came back changed, %d", size, n)
		}
		return nil
	}
	return errors.New("no answer to 20 of them")
}

// both moves TCP and UDP between all ends of two hosts, each starting.
func both(t *testing.T, a, b *host) {
	for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
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
