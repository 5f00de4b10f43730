package capture

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
)

// fill puts a packet of n bytes that tells its number.
func fill(r *ring, number, n int) {
	b := make([]byte, n)
	binary.LittleEndian.PutUint32(b, uint32(number))
	r.put(&Meta{}, 1, int64(number), maxPacket, [][]byte{b[:3], b[3:]})
}

// take releases the oldest frame and returns its packet; nil if the ring is empty.
func take(t *testing.T, r *ring) *Packet {
	t.Helper()
	b := r.peek()
	if b == nil {
		return nil
	}
	p := new(Packet)
	if err := p.parse(b); err != nil {
		t.Fatal(err)
	}
	p.Data = bytes.Clone(p.Data)
	r.release(len(b))
	return p
}

func TestRingKeepsOrderAndBytes(t *testing.T) {
	r := newRing(1 << 10)
	random := rand.New(rand.NewPCG(1, 2))
	in, out := 0, 0
	for range 10_000 {
		if random.IntN(2) == 0 {
			lost := r.lost.Load()
			fill(r, in, 4+random.IntN(300))
			if r.lost.Load() == lost {
				in++
			}
			continue
		}
		if p := take(t, r); p != nil {
			if got := int(binary.LittleEndian.Uint32(p.Data)); got != out || p.Time != int64(out) || p.Length != len(p.Data) {
				t.Fatalf("packet %d is number %d of time %d, %d of %d bytes", out, got, p.Time, len(p.Data), p.Length)
			}
			out++
		}
	}
	if in < 1000 || r.lost.Load() == 0 || in-out > 20 {
		t.Fatalf("%d in, %d out, %d lost", in, out, r.lost.Load())
	}
}

func TestRingLosesWhatFindsNoRoom(t *testing.T) {
	r := newRing(1 << 10)
	fitting := (1 << 10) / frameLen(packetHeader+100)
	for i := range fitting + 3 {
		fill(r, i, 100)
	}
	fill(r, 99, 2000) // longer than the ring
	if got := r.lost.Load(); got != 4 {
		t.Errorf("%d lost, want 4", got)
	}
	for i := range fitting {
		if p := take(t, r); p == nil || p.Time != int64(i) {
			t.Fatalf("packet %d is %+v", i, p)
		}
	}
	if p := take(t, r); p != nil {
		t.Errorf("one more: %+v", p)
	}
	fill(r, 7, 100)
	if p := take(t, r); p == nil || p.Time != 7 {
		t.Errorf("after the ring was full: %+v", p)
	}
}

func TestRingCutsPackets(t *testing.T) {
	peer := netip.MustParseAddr("2001:db8::7")
	whole := []byte("a packet that is longer than wanted")
	for limit, want := range map[int]int{0: 0, 1: 1, 7: 7, 8: 8, len(whole): len(whole), 1000: len(whole)} {
		r := newRing(1 << 10)
		m := Meta{Verdict: Received, Form: Datagram, Peer: peer, GSO: 4, Size: 1234, Partial: true}
		r.put(&m, 77, 5, limit, [][]byte{whole[:9], nil, whole[9:]})
		p := take(t, r)
		if p.Meta != m || p.VNI != 77 || p.Time != 5 || p.Length != len(whole) || string(p.Data) != string(whole[:want]) {
			t.Errorf("limit %d: got %+v", limit, p)
		}
	}
	r := newRing(1 << 18)
	r.put(new(Meta), 1, 1, 10, [][]byte{make([]byte, maxPacket+1)})
	if r.peek() != nil || r.lost.Load() != 1 {
		t.Error("took what is longer than any packet")
	}
}

// TestRingBetweenGoroutines is for the race detector, too.
func TestRingBetweenGoroutines(t *testing.T) {
	r := newRing(1 << 12)
	const packets = 50_000
	var worker sync.WaitGroup
	worker.Go(func() {
		for i := range packets {
			fill(r, i, 8+i%500)
		}
		r.gone.Store(true)
	})
	got, last := uint64(0), int64(-1)
	for done := false; ; {
		p := take(t, r)
		if p == nil {
			if done {
				break
			}
			done = r.gone.Load()
			continue
		}
		if p.Time <= last || int64(binary.LittleEndian.Uint32(p.Data)) != p.Time || p.Length != 8+int(p.Time)%500 {
			t.Fatalf("after packet %d: %d with %d bytes", last, p.Time, p.Length)
		}
		got, last = got+1, p.Time
	}
	worker.Wait()
	if got+r.lost.Load() != packets || got == 0 {
		t.Errorf("%d taken, %d lost, of %d", got, r.lost.Load(), packets)
	}
}
