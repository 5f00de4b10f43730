package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/encap"
)

// soakTraffic is TCP, UDP and pings between pairs of pods, which judge every
// byte that arrives.
type soakTraffic struct {
	guessing []netip.Addr // pods that may get a damaged packet; see mayLookPartial
	stop     chan struct{}
	wg       sync.WaitGroup

	mu   sync.Mutex
	errs []error

	transfers, transferred        atomic.Uint64 // TCP, and its bytes
	sent, received, overtaken     atomic.Uint64 // UDP
	requests, answers, badAnswers atomic.Uint64 // pings
	lookedPartial                 atomic.Uint64 // damaged packets that arrived
}

func newSoakTraffic(guessing ...netip.Addr) *soakTraffic {
	return &soakTraffic{guessing: guessing, stop: make(chan struct{})}
}

// mayLookPartial reports whether err is what one packet with a damaged payload does that arrives because its checksum looks partial: one byte is
// what damages puts into payloads. A socket does not tell which checksums are partial, and one complete checksum in 65536 looks so
// (encap.IsPartial, docs/dataplanes.md). The kernel's vxlan device knows.
func (s *soakTraffic) mayLookPartial(err error) bool {
	var w *wrongBytes
	if !errors.As(err, &w) || !slices.Contains(s.guessing, w.to) || w.n != w.sent || w.differ != 1 || w.got != damagedByte {
		return false
	}
	s.lookedPartial.Add(1)
	return true
}

func (s *soakTraffic) start(a, b *pod) {
	s.run(func() error { return s.transfer(a, b) })
	for _, way := range [][2]*pod{{a, b}, {b, a}} {
		s.run(func() error { return s.stream(way[0], way[1]) })
		s.run(func() error { return s.ping(way[0], way[1]) })
	}
}

func (s *soakTraffic) run(f func() error) {
	s.wg.Go(func() {
		if err := f(); err != nil {
			s.mu.Lock()
			s.errs = append(s.errs, err)
			s.mu.Unlock()
		}
	})
}

// finish ends the traffic and reports what it found. damaged returns how many packets were.
func (s *soakTraffic) finish(t *testing.T, damaged func() uint64) {
	t.Helper()
	close(s.stop)
	s.wg.Wait()
	for _, err := range s.errs {
		t.Error(err)
	}
	// That many are far more than is to be expected.
	if n := s.lookedPartial.Load(); n > 1+damaged()/(1<<14) {
		t.Errorf("%d of %d damaged packets arrived: more than checksums that look partial explain", n, damaged())
	}
	t.Logf("TCP: %d transfers of together %d MB; UDP: %d datagrams sent, %d received, %d of them overtaken or doubled; pings: %d sent, %d answered, %d damaged; damaged and looked partial: %d",
		s.transfers.Load(), s.transferred.Load()>>20, s.sent.Load(), s.received.Load(), s.overtaken.Load(),
		s.requests.Load(), s.answers.Load(), s.badAnswers.Load(), s.lookedPartial.Load())
	if s.transfers.Load() == 0 || s.received.Load() < s.sent.Load()/2 || s.answers.Load() < s.requests.Load()/2 {
		t.Error("hardly any traffic came through")
	}
}

func (s *soakTraffic) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// transfer moves data over TCP, now this way, now that.
func (s *soakTraffic) transfer(a, b *pod) error {
	for !s.stopping() {
		n := 1<<20 + rand.Int64N(1<<20)
		if err := sendTCP(a.NS, b.NS, b.addr, n); err != nil && !s.mayLookPartial(err) {
			return err
		}
		s.transfers.Add(1)
		s.transferred.Add(uint64(n))
		a, b = b, a
	}
	return nil
}

// numbered returns datagram number seq of a stream: its size and all its bytes
// follow from the number. Eight in a row have one size, and one row in four is of
// datagrams that only fit in fragments.
func numbered(buf []byte, stream, seq uint64) []byte {
	row := rand.New(rand.NewPCG(stream, seq/8))
	size := 16 + row.IntN(1400)
	if row.IntN(4) == 0 {
		size += row.IntN(7600)
	}
	binary.BigEndian.PutUint64(buf, stream)
	binary.BigEndian.PutUint64(buf[8:], seq)
	filler := rand.NewPCG(stream, seq)
	for i := 16; i < size; i += 8 {
		binary.BigEndian.PutUint64(buf[i:], filler.Uint64())
	}
	return buf[:size]
}

// stream sends numbered datagrams one way, eight at once.
func (s *soakTraffic) stream(from, to *pod) error {
	var server, client net.PacketConn
	if err := to.Do(func() (err error) { server, err = net.ListenPacket("udp4", to.addr.String()+":0"); return err }); err != nil {
		return err
	}
	defer server.Close()
	if err := from.Do(func() (err error) { client, err = net.ListenPacket("udp4", ":0"); return err }); err != nil {
		return err
	}
	defer client.Close()
	id := rand.Uint64()
	received := make(chan error, 1)
	go func() { received <- s.judge(server, id) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 16<<10)
	for seq := uint64(0); !s.stopping(); {
		<-tick.C
		for range 8 {
			client.WriteTo(numbered(buf, id, seq), server.LocalAddr()) // a refusal shows as loss
			seq++
			s.sent.Add(1)
		}
	}
	netnstest.AwaitArrival(s.sent.Load(), s.received.Load)
	server.SetReadDeadline(time.Now())
	return <-received
}

// judge compares each datagram that arrives with the one that was sent under its number.
func (s *soakTraffic) judge(conn net.PacketConn, id uint64) error {
	buf, want := make([]byte, 1<<16), make([]byte, 16<<10)
	for newest := uint64(0); ; {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if n < 16 {
			return fmt.Errorf("UDP at %s: %d bytes from %s, which nobody sent", conn.LocalAddr(), n, from)
		}
		seq := binary.BigEndian.Uint64(buf[8:])
		if w := numbered(want, id, seq); !bytes.Equal(buf[:n], w) {
			err := newWrongBytes(conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), bytes.NewReader(w), int64(len(w)))
			err.Write(buf[:min(n, len(w))])
			if n != len(w) || !s.mayLookPartial(err) {
				return fmt.Errorf("datagram %d of %d bytes from %s by UDP: %w", seq, n, from, err)
			}
			continue
		}
		s.received.Add(1)
		if seq < newest || seq == newest && seq > 0 {
			s.overtaken.Add(1)
		}
		newest = max(newest, seq)
	}
}

// ping sends echo requests and compares the answers' payload.
func (s *soakTraffic) ping(from, to *pod) error {
	var conn *icmp.PacketConn
	if err := from.Do(func() (err error) { conn, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0"); return err }); err != nil {
		return err
	}
	defer conn.Close()
	id, buf := rand.IntN(1<<16), make([]byte, 1<<16)
	for seq := 1; !s.stopping(); seq++ {
		payload := randomBytes(rand.IntN(3000))
		request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: seq & 0xffff, Data: payload}}
		b, err := request.Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(b, &net.IPAddr{IP: to.addr.AsSlice()}); err != nil {
			return fmt.Errorf("ping %s: %w", to.addr, err)
		}
		s.requests.Add(1)
		conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if err := s.answer(conn, buf, id, seq&0xffff, payload); err != nil {
			return fmt.Errorf("ping %s: %w", to.addr, err)
		}
		select {
		case <-s.stop:
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// answer waits for the echo reply to a request. It is not an error if none comes.
func (s *soakTraffic) answer(conn *icmp.PacketConn, buf []byte, id, seq int, payload []byte) error {
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return nil // lost
		}
		if encap.Sum(buf[:n], 0) != 0xffff { // raw sockets get what the kernel has not checked
			s.badAnswers.Add(1)
			continue
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if e := m.Body.(*icmp.Echo); e.ID != id || e.Seq != seq {
			continue
		} else if !bytes.Equal(e.Data, payload) {
			return fmt.Errorf("answer %d has another payload", seq)
		}
		s.answers.Add(1)
		return nil
	}
}
