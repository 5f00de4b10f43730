package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// dialIn makes gRPC connections that start in ns.
func dialIn(ns *netnstest.NS) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(_ context.Context, addr string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = net.DialTimeout("tcp", addr, 2*time.Second)
			return err
		})
		return conn, err
	})}
}

const trafficTimeout = 20 * time.Second

// echo sends one echo request of size payload bytes and waits for its answer.
func echo(from *netnstest.NS, to netip.Addr, size int) error {
	return echoWithin(from, to, size, 3*time.Second)
}

func echoWithin(from *netnstest.NS, to netip.Addr, size int, limit time.Duration) error {
	var conn *icmp.PacketConn
	network, any, ask, answer := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if to.Is6() {
		network, any, ask, answer = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	err := from.Do(func() (err error) { conn, err = icmp.ListenPacket(network, any); return err })
	if err != nil {
		return err
	}
	defer conn.Close()
	payload := randomBytes(size)
	id := rand.IntN(1 << 16)
	request := icmp.Message{Type: ask, Body: &icmp.Echo{ID: id, Seq: 1, Data: payload}}
	b, err := request.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return fmt.Errorf("ping %s: %w", to, err)
	}
	conn.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("ping %s with %d bytes: no answer: %w", to, size, err)
		}
		m, err := icmp.ParseMessage(ask.Protocol(), buf[:n])
		if err != nil || m.Type != answer || m.Body.(*icmp.Echo).ID != id {
			continue
		}
		if !bytes.Equal(m.Body.(*icmp.Echo).Data, payload) {
			return fmt.Errorf("ping %s with %d bytes: the answer has another payload", to, size)
		}
		return nil
	}
}

// sendTCP moves n random bytes over TCP to a listener at addr and compares what
// arrived with what left. If they differ, the error is a *wrongBytes.
func sendTCP(from, to *netnstest.NS, addr netip.Addr, n int64) error {
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr.String(), "0")); return err }); err != nil {
		return err
	}
	defer l.Close()
	seed := [32]byte{byte(n)}
	got := newWrongBytes(addr, rand.NewChaCha8(seed), n)
	received := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- err
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * trafficTimeout))
		_, err = io.CopyBuffer(got, onlyReader{conn}, make([]byte, 1<<18))
		received <- err
	}()
	var conn net.Conn
	if err := from.Do(func() (err error) { conn, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }); err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * trafficTimeout))
	source := io.LimitReader(rand.NewChaCha8(seed), n)
	if _, err := io.CopyBuffer(onlyWriter{conn}, source, make([]byte, 1<<18)); err != nil {
		return fmt.Errorf("send over TCP to %s: %w", addr, err)
	}
	conn.(*net.TCPConn).CloseWrite()
	if err := <-received; err != nil {
		return fmt.Errorf("receive over TCP at %s: %w", addr, err)
	}
	if got.differ > 0 || got.n != got.sent {
		return got
	}
	return nil
}

// wrongBytes compares what is written to it with what was sent. It is an error if they differ.
type wrongBytes struct {
	to                     netip.Addr
	want                   io.Reader
	sent                   int64 // bytes of want
	buf                    []byte
	n, differ, first, last int64 // bytes that arrived, those of them that differ, and the places of the first and the last of these
	got                    byte  // the last that differs
}

func newWrongBytes(to netip.Addr, want io.Reader, sent int64) *wrongBytes {
	return &wrongBytes{to: to, want: want, sent: sent, buf: make([]byte, 1<<18)}
}

// Write implements io.Writer, for at most len(w.buf) bytes.
func (w *wrongBytes) Write(b []byte) (int, error) {
	want := w.buf[:len(b)]
	if _, err := io.ReadFull(w.want, want); err != nil {
		return 0, err
	}
	if !bytes.Equal(b, want) {
		for i := range b {
			if b[i] == want[i] {
				continue
			}
			if w.differ == 0 {
				w.first = w.n + int64(i)
			}
			w.differ, w.last, w.got = w.differ+1, w.n+int64(i), b[i]
		}
	}
	w.n += int64(len(b))
	return len(b), nil
}

// Error implements error.
func (w *wrongBytes) Error() string {
	return fmt.Sprintf("to %s: %d of %d bytes arrived, of which %d differ from what was sent, at %d to %d; the last is %#x", w.to, w.n, w.sent, w.differ, w.first, w.last, w.got)
}

type onlyWriter struct{ io.Writer } // hides ReadFrom, as onlyReader hides WriteTo

type onlyReader struct{ io.Reader } // hides WriteTo, which would ignore the buffer

// datagrams sends count UDP datagrams of size bytes, one after the other, to an
// echo server at addr and compares each answer. The first one may be lost: that
// is how a sender learns that a link on the way has a smaller MTU (RFC 1191).
func datagrams(from, to *netnstest.NS, addr netip.Addr, size, count int) error {
	var server net.PacketConn
	if err := to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(addr.String(), "0"))
		return err
	}); err != nil {
		return err
	}
	defer server.Close()
	first, client, err := twoSockets(from)
	if err != nil {
		return err
	}
	defer first.Close()
	defer client.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(buf[:n], from)
		}
	}()
	err = askEcho(first, server.LocalAddr(), size, 500*time.Millisecond)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	for i := range count - 1 {
		if err := askEcho(client, server.LocalAddr(), size, 3*time.Second); err != nil {
			return fmt.Errorf("datagram %d of %d bytes to %s: %w", i+1, size, addr, err)
		}
	}
	return nil
}

// twoSockets returns two UDP sockets. On a busy machine an echo may come too late for the first one: it must
// not count as an answer to what the second one sends.
func twoSockets(ns *netnstest.NS) (first, second net.PacketConn, err error) {
	err = ns.Do(func() (err error) {
		if first, err = net.ListenPacket("udp", ":0"); err != nil {
			return err
		}
		if second, err = net.ListenPacket("udp", ":0"); err != nil {
			first.Close()
		}
		return err
	})
	return first, second, err
}

func askEcho(client net.PacketConn, to net.Addr, size int, limit time.Duration) error {
	payload, buf := randomBytes(size), make([]byte, 1<<16)
	if _, err := client.WriteTo(payload, to); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	client.SetReadDeadline(time.Now().Add(limit))
	n, _, err := client.ReadFrom(buf)
	if err != nil {
		return fmt.Errorf("no echo: %w", err)
	}
	if !bytes.Equal(buf[:n], payload) {
		return errors.New("the echo has another payload")
	}
	return nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// meter sends numbered datagrams at a steady pace, one way, and keeps account of
// what arrives: the loss meter of tests that break something meanwhile.
type meter struct {
	sent, received, foreign atomic.Uint64
	arrived                 arrivals
	gap                     atomic.Int64  // longest time between two arrivals, ns
	most                    atomic.Uint64 // nothing is sent while so many are on their way; 0: no limit
	stop                    chan struct{}
	sender, receiver        sync.WaitGroup
	conns                   []net.PacketConn
}

// startMeter sends from one namespace to addr in another every period.
func startMeter(from, to *netnstest.NS, addr netip.Addr, period time.Duration) (*meter, error) {
	var server, client net.PacketConn
	if err := to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(addr.String(), "0"))
		return err
	}); err != nil {
		return nil, err
	}
	if err := from.Do(func() (err error) { client, err = net.ListenPacket("udp", ":0"); return err }); err != nil {
		server.Close()
		return nil, err
	}
	holdMuch(server)
	m := &meter{stop: make(chan struct{}), conns: []net.PacketConn{server, client}}
	magic := randomBytes(16)
	m.receiver.Go(func() { m.receive(server, magic) })
	m.sender.Go(func() { m.send(client, server.LocalAddr(), magic, period) })
	return m, nil
}

// holdMuch lets a socket hold 4 MB, whatever net.core.rmem_max is: what the test is slow to read
// is not lost. It takes root in the initial user namespace.
func holdMuch(conn net.PacketConn) {
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) })
}

func (m *meter) send(conn net.PacketConn, to net.Addr, magic []byte, period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
		}
		if most := m.most.Load(); most > 0 && m.sent.Load()-m.received.Load() >= most {
			continue
		}
		b := binary.BigEndian.AppendUint64(bytes.Clone(magic), m.sent.Add(1))
		conn.WriteTo(b, to) // a refusal shows as loss
	}
}

func (m *meter) receive(conn net.PacketConn, magic []byte) {
	buf := make([]byte, 1500)
	last := time.Now()
	for {
		n, _, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if n != 24 || !bytes.Equal(buf[:16], magic) {
			m.foreign.Add(1)
			continue
		}
		m.received.Add(1)
		m.arrived.add(binary.BigEndian.Uint64(buf[16:]))
		now := time.Now()
		m.gap.Store(max(m.gap.Load(), int64(now.Sub(last))))
		last = now
	}
}

// finish stops sending, gives the last datagrams time to arrive and returns how
// many were lost.
func (m *meter) finish() (lost uint64) {
	close(m.stop)
	m.sender.Wait()
	netnstest.AwaitArrival(m.sent.Load(), m.received.Load)
	for _, c := range m.conns {
		c.Close()
	}
	m.receiver.Wait()
	return m.sent.Load() - m.received.Load()
}

// arrivals tells which of a meter's datagrams have arrived. They are numbered from 1.
type arrivals struct {
	mu      sync.Mutex
	seen    []uint64 // a bit for each
	doubled uint64
}

func (a *arrivals) add(n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uint64(len(a.seen)) <= n/64 {
		a.seen = append(a.seen, 0)
	}
	if a.has(n) {
		a.doubled++
	}
	a.seen[n/64] |= 1 << (n % 64)
}

func (a *arrivals) has(n uint64) bool {
	return n/64 < uint64(len(a.seen)) && a.seen[n/64]&(1<<(n%64)) != 0
}

// missing returns how many of those after the first number, up to the last one, have not arrived.
func (a *arrivals) missing(after, last uint64) (n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := after + 1; i <= last; i++ {
		if !a.has(i) {
			n++
		}
	}
	return n
}

// TestMeterWaits: what a userspace daemon forwards only after a second, because the machine does not run it, is not lost.
func TestMeterWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeUserspace})
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)
	waitTraffic(t, there, 100)
	daemon := c.hosts[0].daemon.cmd.Process
	daemon.Signal(unix.SIGSTOP)
	for _, m := range []*meter{there, back} {
		eventually(t, patience, "nothing more is sent", func() error { return above(m.sent.Load()-m.received.Load(), queueTakes-1) })
	}
	time.Sleep(200 * time.Millisecond) // 200 more overflow the queue
	daemon.Signal(unix.SIGCONT)
	waitTraffic(t, there, 100)
	if lost := [2]uint64{there.finish(), back.finish()}; lost != [2]uint64{} {
		t.Errorf("%d datagrams lost", lost)
	}
}
