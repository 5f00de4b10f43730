package capture

import (
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/sys/cpu"
)

// ring holds frames from one worker to one reader. Positions only ever grow; their remainder is an index of buf.
type ring struct {
	buf []byte // its length is a power of two

	tail atomic.Uint64 // what the reader has released
	gone atomic.Bool   // the worker puts nothing more
	_    cpu.CacheLinePad

	head atomic.Uint64 // what the worker has filled
	lost atomic.Uint64 // packets that found no room
	next uint64        // the worker's: head once it has filled what it reserved
	seen uint64        // the worker's: tail when it last looked
}

func newRing(size int) *ring { return &ring{buf: make([]byte, size)} }

// reserve returns room for a frame of n bytes in one piece, or nil if the ring is too full.
func (r *ring) reserve(n int) []byte {
	head, size := r.head.Load(), uint64(len(r.buf))
	at, skip := head&(size-1), uint64(0)
	if left := size - at; left < uint64(n) {
		skip = left
	}
	r.next = head + skip + uint64(n)
	if r.next-r.seen > size {
		if r.seen = r.tail.Load(); r.next-r.seen > size {
			return nil
		}
	}
	if skip > 0 {
		putFrame(r.buf[at:], padding)
		at = 0
	}
	return r.buf[at:][:n:n]
}

// commit hands what was reserved to the reader.
func (r *ring) commit() { r.head.Store(r.next) }

// put copies a packet that is given in parts, at most limit bytes of it.
func (r *ring) put(m *Meta, vni uint32, ns int64, limit int, parts [][]byte) {
	whole := 0
	for _, p := range parts {
		whole += len(p)
	}
	n := min(whole, limit)
	b := r.reserve(frameLen(packetHeader + n))
	if b == nil || whole > maxPacket {
		r.lost.Add(1)
		return
	}
	putPacket(b, m, vni, ns, whole, n)
	to := b[packetHeader:]
	clear(to[n:])
	to = to[:n]
	for _, p := range parts {
		to = to[copy(to, p):]
	}
	r.commit()
}

// peek returns the oldest frame, which stays until it is released, or nil.
func (r *ring) peek() []byte {
	for {
		tail := r.tail.Load()
		if tail == r.head.Load() {
			return nil
		}
		b := r.buf[tail&uint64(len(r.buf)-1):]
		n := binary.LittleEndian.Uint32(b)
		if Kind(b[4]) != padding {
			return b[:n]
		}
		r.tail.Store(tail + uint64(n))
	}
}

// release gives the room of the oldest frame, of n bytes, back to the worker.
func (r *ring) release(n int) { r.tail.Store(r.tail.Load() + uint64(n)) }
