package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// streamBlock is what one system call moves: iperf3's default.
const streamBlock = 128 << 10

// Payload is what a stream carries: a period of bytes that repeats.
type Payload struct {
	bytes  []byte // a period and a block more: a block can be taken at every offset of the period
	period int64
	verify bool
}

// Zeros is a payload that the receiver does not verify, for measuring.
func Zeros() Payload { return Payload{bytes: make([]byte, streamBlock+1), period: 1} }

// Pattern is a payload that the receiver verifies. Its period has no factor in
// common with block and segment sizes: lost, doubled and displaced bytes do not
// compare equal.
func Pattern() Payload {
	const period = 1<<20 - 3 // prime to every power of two
	p := Payload{bytes: make([]byte, period+streamBlock), period: period, verify: true}
	rng := rand.NewChaCha8([32]byte([]byte("overlayd demo, one fixed stream.")))
	rng.Read(p.bytes[:period])
	copy(p.bytes[period:], p.bytes)
	return p
}

// block returns the streamBlock bytes at an offset of the stream.
func (p Payload) block(off int64) []byte {
	off %= p.period
	return p.bytes[off : off+streamBlock]
}

// Send writes the payload for as long as d and returns how many bytes it wrote.
func (p Payload) Send(w io.Writer, d time.Duration) (sent int64, err error) {
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		n, err := w.Write(p.block(sent))
		sent += int64(n)
		if err != nil {
			return sent, fmt.Errorf("send: %w", stalled(err))
		}
	}
	return sent, nil
}

// Received is what arrived of a stream, and when its first bytes and its end did.
type Received struct {
	Bytes      int64
	First, End time.Time
}

// Gbit returns Gbit/s of payload, from the first byte to the end.
func (r Received) Gbit() float64 {
	return float64(r.Bytes) * 8 / r.End.Sub(r.First).Seconds() / 1e9
}

// Receive reads to the end of the stream. A stream without a byte is an error.
func (p Payload) Receive(r io.Reader) (got Received, err error) {
	buf := make([]byte, streamBlock)
	for {
		n, err := r.Read(buf)
		if n > 0 && got.Bytes == 0 {
			got.First = time.Now()
		}
		if p.verify && !bytes.Equal(buf[:n], p.block(got.Bytes)[:n]) {
			return got, fmt.Errorf("wrong bytes after %d right ones", got.Bytes)
		}
		got.Bytes += int64(n)
		switch {
		case err == io.EOF && got.Bytes == 0:
			return got, errors.New("nothing arrived")
		case err == io.EOF:
			got.End = time.Now()
			return got, nil
		case err != nil:
			return got, fmt.Errorf("receive: %w", stalled(err))
		}
	}
}

// stalled replaces the error of a socket's timeout by one that people understand.
func stalled(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("the stream stalled: nothing moved for %s", StallTimeout)
	}
	return err
}
