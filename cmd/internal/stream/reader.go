package stream

import (
	"errors"
	"fmt"
	"io"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/capture"
)

// Packet is a packet of a stream.
type Packet struct {
	*capture.Packet        // borrowed until the next Next
	Verdict         string // its name
	Peer            string // name of the node, else the address of its VTEP, else empty; safe to print
}

// Reader reads a stream. It trusts nobody, and holds little memory whatever comes.
type Reader struct {
	Hello Hello
	Lost  uint64 // packets that the capture has lost so far

	frames *capture.Reader
	frame  capture.Frame
	names  Names
}

// The ends of a stream besides io.EOF, which is the one that was asked for.
var (
	ErrCut = errors.New("the stream was cut off: the daemon, or the overlayd that asked it, was killed")
	ErrEnd = errors.New("the daemon ended the stream")
)

// NewReader reads the beginning of a stream.
func NewReader(r io.Reader) (*Reader, error) {
	s := &Reader{frames: capture.NewReader(r), names: Names{}}
	if err := s.frames.Next(&s.frame); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: it is empty", capture.ErrStream)
	} else if err != nil {
		return nil, cut(err)
	}
	if s.frame.Kind != capture.Hello {
		return nil, fmt.Errorf("%w: it begins with kind %d, not with a hello", capture.ErrStream, s.frame.Kind)
	}
	hello, err := parseHello(s.frame.Text)
	if err != nil {
		return nil, err
	}
	s.Hello = hello
	for i, v := range hello.Verdicts {
		hello.Verdicts[i] = control.Printable(v, maxName)
	}
	return s, nil
}

// Next reads the next packet. The error is io.EOF at the end.
func (s *Reader) Next(p *Packet) error {
	for {
		if err := s.frames.Next(&s.frame); err != nil {
			return cut(err)
		}
		switch s.frame.Kind {
		case capture.IsPacket:
			return s.packet(p)
		case capture.Names:
			if err := s.names.parse(s.frame.Text); err != nil {
				return err
			}
		case capture.Lost:
			s.Lost = s.frame.Lost
		case capture.End:
			if s.frame.Text == "" {
				return io.EOF
			}
			return fmt.Errorf("%w: %s", ErrEnd, control.Printable(s.frame.Text, maxName))
		default:
			return fmt.Errorf("%w: a second hello", capture.ErrStream)
		}
	}
}

func (s *Reader) packet(p *Packet) error {
	c := &s.frame.Packet
	if int(c.Verdict) >= len(s.Hello.Verdicts) {
		return fmt.Errorf("%w: verdict %d of a packet, and there are %d", capture.ErrStream, c.Verdict, len(s.Hello.Verdicts))
	}
	p.Packet, p.Verdict, p.Peer = c, s.Hello.Verdicts[c.Verdict], ""
	if c.Peer.IsValid() {
		if p.Peer = s.names[c.Peer]; p.Peer == "" {
			p.Peer = c.Peer.String()
		}
	}
	return nil
}

// cut returns what the end of the bytes means.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCut
	}
	return err
}
