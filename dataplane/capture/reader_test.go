package capture

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/overlayd/overlayd/encap"
)

// packetFrame is the frame of a packet.
func packetFrame(m Meta, data string, whole int) []byte {
	b := make([]byte, frameLen(packetHeader+len(data)))
	putPacket(b, &m, 5, 1_700_000_000_000_000_001, whole, len(data))
	copy(b[packetHeader:], data)
	return b
}

func TestReaderReadsWhatIsWritten(t *testing.T) {
	metas := []Meta{
		{Verdict: Sent, Form: Datagram, Peer: netip.MustParseAddr("192.0.2.7"), GSO: encap.GSOTCPv4, Size: 1400, Partial: true},
		{Verdict: 14, Form: Arrival, Peer: netip.MustParseAddr("2001:db8::7")},
		{Verdict: Received},
	}
	b := AppendText(nil, Hello, "this is text")
	for i, m := range metas {
		b = append(b, packetFrame(m, strings.Repeat("x", i*7), 100)...)
	}
	unknown := make([]byte, 16)
	putFrame(unknown, 200)
	b = AppendLost(append(b, unknown...), math.MaxUint64)
	b = AppendText(b, End, "")
	r, f := NewReader(iotest.OneByteReader(bytes.NewReader(b))), Frame{}
	next := func(k Kind) {
		t.Helper()
		if err := r.Next(&f); err != nil || f.Kind != k {
			t.Fatalf("kind %d, err %v; want kind %d", f.Kind, err, k)
		}
	}
	if next(Hello); f.Text != "this is text" {
		t.Errorf("hello %q", f.Text)
	}
	for i, m := range metas {
		next(IsPacket)
		if p := f.Packet; p.Meta != m || p.VNI != 5 || p.Length != 100 || p.Time != 1_700_000_000_000_000_001 || string(p.Data) != strings.Repeat("x", i*7) {
			t.Errorf("packet %d is %+v", i, p)
		}
	}
	if next(Lost); f.Lost != math.MaxUint64 {
		t.Errorf("%d lost", f.Lost)
	}
	if next(End); f.Text != "" {
		t.Errorf("end %q", f.Text)
	}
	if err := r.Next(&f); err != io.EOF {
		t.Errorf("then: %v", err)
	}
}

func TestLongTextIsCut(t *testing.T) {
	b := AppendText(nil, Hello, strings.Repeat("x", 2*MaxFrame))
	var f Frame
	if err := NewReader(bytes.NewReader(b)).Next(&f); err != nil || len(b) != MaxFrame || len(f.Text) != MaxFrame-12 {
		t.Errorf("%d bytes, text of %d: %v", len(b), len(f.Text), err)
	}
}

func TestReaderRefuses(t *testing.T) {
	set := func(b []byte, at int, bytes ...byte) []byte {
		copy(b[at:], bytes)
		return b
	}
	packet := func() []byte { return packetFrame(Meta{}, "12345678", 8) }
	for name, c := range map[string]struct {
		b   []byte
		err error
	}{
		"nothing":              {nil, io.EOF},
		"half a header":        {packet()[:5], io.ErrUnexpectedEOF},
		"a header only":        {packet()[:8], io.ErrUnexpectedEOF},
		"half a packet":        {packet()[:50], io.ErrUnexpectedEOF},
		"length 0":             {make([]byte, 8), ErrStream},
		"length 7":             {set(packet(), 0, 7), ErrStream},
		"length 57":            {set(packet(), 0, 57), ErrStream},
		"4 GB":                 {set(packet(), 0, 0xf8, 0xff, 0xff, 0xff), ErrStream},
		"more than it has":     {set(packet(), 24, 9), ErrStream},
		"less than it has":     {set(packet(), 20, 7), ErrStream},
		"bytes left":           {set(packet(), 24, 0), ErrStream},
		"longer than a packet": {set(packet(), 20, 0xff, 0xff, 0xff), ErrStream},
		"4 GB in it":           {set(packet(), 20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrStream},
		"unknown form":         {set(packet(), 6, 3), ErrStream},
		"short packet":         {[]byte{40, 0, 0, 0, byte(IsPacket), 39: 0}, ErrStream},
		"text without length":  {[]byte{8, 0, 0, 0, byte(End), 0, 0, 0}, ErrStream},
		"text too long":        {[]byte{16, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 'a', 'b', 'c', 'd'}, ErrStream},
		"text of 4 GB":         {[]byte{16, 0, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255, 'a', 'b', 'c', 'd'}, ErrStream},
		"count without number": {[]byte{8, 0, 0, 0, 3, 0, 0, 0}, ErrStream},
	} {
		var f Frame
		if err := NewReader(bytes.NewReader(c.b)).Next(&f); !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, want %v", name, err, c.err)
		}
	}
}

// FuzzReader: whatever comes, a packet is in itself consistent, and little memory is taken.
func FuzzReader(f *testing.F) {
	f.Add(AppendText(nil, Hello, "text"))
	f.Add(append(packetFrame(Meta{Peer: peerA}, "data", 99), AppendLost(nil, 7)...))
	f.Add(append(packetFrame(Meta{Form: Arrival}, "", 0), make([]byte, 9)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for left := len(b); ; {
			var frame Frame
			err := r.Next(&frame)
			if len(r.buf) > MaxFrame || left < 0 {
				t.Fatalf("%d bytes held, %d left", len(r.buf), left)
			}
			if err != nil {
				return
			}
			left -= frameHeader
			if p := frame.Packet; frame.Kind == IsPacket && (len(p.Data) > p.Length || p.Length > maxPacket || p.Form >= numForms || p.Peer.Is4In6()) {
				t.Fatalf("packet %+v", p)
			}
			if len(frame.Text) > len(b) {
				t.Fatalf("text of %d bytes in %d", len(frame.Text), len(b))
			}
		}
	})
}
