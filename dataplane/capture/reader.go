package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// Packet is one packet of a stream.
type Packet struct {
	Meta
	Time   int64 // in ns since 1970
	VNI    uint32
	Length int    // in bytes, of the packet as it was
	Data   []byte // its first bytes, perhaps all: borrowed until the next Next
}

// Frame is one frame of a stream.
type Frame struct {
	Kind   Kind
	Packet Packet
	Lost   uint64 // packets that the capture has lost so far
	Text   string // of Hello, Names and End
}

// Reader reads a stream. It trusts nobody: it never holds more than one frame, of MaxFrame bytes at
// most, and what it returns is in itself consistent.
type Reader struct {
	r   io.Reader
	buf []byte
}

// NewReader returns a Reader of r, which it reads in small pieces.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, buf: make([]byte, 4096)} }

// ErrStream says that a stream is not one of captured packets.
var ErrStream = errors.New("not a stream of captured packets")

// Next reads the next frame of a kind that it knows. The end of the stream is io.EOF, within a
// frame io.ErrUnexpectedEOF.
func (r *Reader) Next(f *Frame) error {
	for {
		b, err := r.read()
		if err != nil {
			return err
		}
		f.Kind = Kind(b[4])
		switch f.Kind {
		case IsPacket:
			return f.Packet.parse(b)
		case Hello, Names, End:
			f.Text, err = parseText(b)
			return err
		case Lost:
			if len(b) != frameHeader+8 {
				return fmt.Errorf("%w: a count of %d bytes", ErrStream, len(b))
			}
			f.Lost = binary.LittleEndian.Uint64(b[frameHeader:])
			return nil
		}
	}
}

// read returns the next frame, which stays until the one after it is read.
func (r *Reader) read() ([]byte, error) {
	if _, err := io.ReadFull(r.r, r.buf[:frameHeader]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(r.buf)
	if n < frameHeader || n > MaxFrame || n%frameAlign != 0 {
		return nil, fmt.Errorf("%w: a frame of %d bytes", ErrStream, n)
	}
	if int(n) > len(r.buf) {
		r.buf = append(make([]byte, 0, MaxFrame), r.buf[:frameHeader]...)[:MaxFrame]
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b[frameHeader:]); err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	return b, nil
}

func parseText(b []byte) (string, error) {
	if len(b) < frameHeader+4 {
		return "", fmt.Errorf("%w: a text without a length", ErrStream)
	}
	n := binary.LittleEndian.Uint32(b[frameHeader:])
	if text := b[frameHeader+4:]; int64(n) <= int64(len(text)) {
		return string(text[:n]), nil
	}
	return "", fmt.Errorf("%w: a text of %d bytes in a frame of %d", ErrStream, n, len(b))
}

// parse reads the frame of a packet.
func (p *Packet) parse(b []byte) error {
	if len(b) < packetHeader {
		return fmt.Errorf("%w: a packet in a frame of %d bytes", ErrStream, len(b))
	}
	whole, n := binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:])
	if n > whole || whole > maxPacket || frameLen(packetHeader+int(n)) != len(b) {
		return fmt.Errorf("%w: %d of %d bytes of a packet in a frame of %d", ErrStream, n, whole, len(b))
	}
	if b[6] >= byte(numForms) {
		return fmt.Errorf("%w: a packet of form %d", ErrStream, b[6])
	}
	flags := binary.LittleEndian.Uint16(b[30:])
	*p = Packet{
		Meta: Meta{Verdict: Verdict(b[5]), Form: Form(b[6]), GSO: encap.GSO(b[7]),
			Size: binary.LittleEndian.Uint16(b[28:]), Partial: flags&flagPartial != 0},
		Time: timeOf(b), VNI: binary.LittleEndian.Uint32(b[16:]), Length: int(whole), Data: b[packetHeader:][:n:n],
	}
	if peer := netip.AddrFrom16([16]byte(b[32:packetHeader])); !peer.IsUnspecified() {
		p.Peer = peer.Unmap()
	}
	return nil
}
