package embedded

import (
	"encoding/binary"
	"sync"
)

// fewUnsent is what may wait on a connection without being in anybody's way, in bytes: gRPC itself waits when there is more.
const fewUnsent = 64 << 10

// unsent knows how much a connection still has to send: gRPC takes a message at once, and holds it for as long as the client does not
// allow to send it. What a client cancels counts until the connection ends.
type unsent struct {
	mu      sync.Mutex
	bytes   int64 // of messages that are not sent
	waiting []func()
	closed  bool

	header  [9]byte // of the HTTP/2 frame that is being written
	have    int     // of header
	payload int     // of that frame, still to come
}

// add counts a message that gRPC has taken.
func (u *unsent) add(n int) {
	u.mu.Lock()
	u.bytes += int64(n)
	u.mu.Unlock()
}

// atRest has end called when little is unsent, or the connection ends.
func (u *unsent) atRest(end func()) {
	u.mu.Lock()
	if u.bytes > fewUnsent && !u.closed {
		u.waiting, end = append(u.waiting, end), func() {}
	}
	u.mu.Unlock()
	end()
}

// wrote takes the payload of DATA frames (RFC 9113, section 6.1) off what is unsent.
func (u *unsent) wrote(b []byte) {
	const data = 0
	u.mu.Lock()
	for len(b) > 0 {
		if u.payload > 0 {
			n := min(u.payload, len(b))
			if u.header[3] == data {
				u.bytes -= int64(n)
			}
			u.payload -= n
			b = b[n:]
			continue
		}
		n := copy(u.header[u.have:], b)
		u.have += n
		b = b[n:]
		if u.have == len(u.header) {
			u.have, u.payload = 0, int(binary.BigEndian.Uint32(u.header[:])>>8)
		}
	}
	u.release(u.bytes <= fewUnsent)
}

// isAtRest reports whether little is unsent, or the connection has ended.
func (u *unsent) isAtRest() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes <= fewUnsent || u.closed
}

// isLost reports whether the connection has ended.
func (u *unsent) isLost() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed
}

func (u *unsent) close() {
	u.mu.Lock()
	u.closed = true
	u.release(true)
}

// release calls those who wait, if it is time. It is called with mu held, and gives it back.
func (u *unsent) release(due bool) {
	var all []func()
	if due {
		all, u.waiting = u.waiting, nil
	}
	u.mu.Unlock()
	for _, end := range all {
		end()
	}
}
