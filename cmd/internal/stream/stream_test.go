package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane/capture"
)

var (
	peerA = netip.MustParseAddr("192.0.2.1")
	peerB = netip.MustParseAddr("2001:db8::2")
)

// packets are the frames of packets with these verdicts, from peerA.
func packets(t testing.TB, verdicts ...capture.Verdict) []byte {
	t.Helper()
	var h capture.Hub
	var p capture.Point
	h.Join(1, &p)
	c, err := h.Start(capture.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, v := range verdicts {
		p.Tap().Show(capture.Meta{Verdict: v, Peer: peerA}, []byte("packet"))
	}
	return c.Append(nil, 1<<20)
}

func hello(verdicts ...string) []byte {
	return Hello{V: Version, Host: "host-a", Verdicts: verdicts}.Append(nil)
}

func TestStream(t *testing.T) {
	b := hello("tx", "r\x1bx")
	b = Names{}.Update(b, Names{peerA: "host-\x1bb", peerB: "c"})
	b = append(b, packets(t, 1)...)
	b = capture.AppendLost(b, 7)
	b = capture.AppendText(b, capture.End, "")
	s, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var p Packet
	if err := s.Next(&p); err != nil || p.Verdict != `r\x1bx` || p.Peer != `host-\x1bb` || string(p.Data) != "packet" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := s.Next(&p); err != io.EOF || s.Lost != 7 || s.Hello.Host != "host-a" || s.names[peerB] != "c" {
		t.Errorf("end: %v, %d lost, %+v", err, s.Lost, s)
	}
}

func TestReaderRefuses(t *testing.T) {
	good := hello("tx")
	text := func(k capture.Kind, s string) []byte { return capture.AppendText(nil, k, s) }
	many := strings.TrimSuffix(strings.Repeat(`"x",`, 257), ",")
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"nothing":         {nil, "it is empty"},
		"half a hello":    {good[:9], "cut off"},
		"no hello":        {capture.AppendLost(nil, 1), "not with a hello"},
		"no JSON":         {text(capture.Hello, "{"), "hello: unexpected end"},
		"no version":      {text(capture.Hello, `{"verdicts":["tx"]}`), `"v" is 0`},
		"later version":   {text(capture.Hello, `{"v":2,"verdicts":["tx"]}`), `"v" is 2, and this program reads version 1`},
		"no verdicts":     {text(capture.Hello, `{"v":1}`), `"verdicts" has 0 entries`},
		"many verdicts":   {text(capture.Hello, `{"v":1,"verdicts":[`+many+`]}`), `"verdicts" has 257 entries`},
		"no end":          {good, "cut off"},
		"half a packet":   {append(good[:len(good):len(good)], packets(t, 0)[:50]...), "cut off"},
		"a bad verdict":   {append(good[:len(good):len(good)], packets(t, 1)...), "verdict 1 of a packet, and there are 1"},
		"another hello":   {append(good[:len(good):len(good)], good...), "a second hello"},
		"no address":      {append(good[:len(good):len(good)], text(capture.Names, "host b\n")...), `names: "host b\n" is not`},
		"no name":         {append(good[:len(good):len(good)], text(capture.Names, "192.0.2.1")...), `names: "192.0.2.1" is not`},
		"daemon's reason": {append(good[:len(good):len(good)], text(capture.End, "so\nit ends")...), `the daemon ended the stream: so\nit ends`},
	} {
		s, err := NewReader(bytes.NewReader(c.b))
		for p := (Packet{}); err == nil; {
			err = s.Next(&p)
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyNames: those of all peers fit, and only what is new is told.
func TestManyNames(t *testing.T) {
	now := Names{}
	for i := range 10_000 {
		now[netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})] = fmt.Sprintf("%050d", i)
	}
	known := Names{}
	b := known.Update(hello("tx"), now)
	now[peerA] = "one more"
	b = capture.AppendText(known.Update(b, now), capture.End, "")
	s, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Next(new(Packet)); err != io.EOF || len(s.names) != 10_001 || s.names[peerA] != "one more" {
		t.Errorf("%v, %d names", err, len(s.names))
	}
	if again := known.Update(nil, now); len(again) > 0 {
		t.Errorf("%d bytes once more", len(again))
	}
}

func TestQuery(t *testing.T) {
	for _, q := range []Query{{}, {Peer: "host b&c"}, {Drops: true, Count: 5, Snap: MaxSnap}} {
		u, err := url.Parse("http://overlayd" + Path + q.String())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseQuery(u.Query()); err != nil || got != q {
			t.Errorf("%s: %+v, %v", u, got, err)
		}
	}
	for raw, says := range map[string]string{
		"peer=":                            "peer",
		"peer=" + strings.Repeat("x", 300): "peer",
		"drops=maybe":                      `drops "maybe"`,
		"count=0":                          `count "0": want a number from 1`,
		"count=-1":                         `count "-1"`,
		"count=1e9":                        `count "1e9"`,
		"snap=0":                           `snap "0"`,
		"snap=262145":                      `snap "262145": want a number from 1 to 262144`,
		"snap=1&snap=2":                    `"snap" is given 2 times`,
		"size=1":                           `"size": want peer`,
	} {
		v, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseQuery(v); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// FuzzQuery: whatever a client asks for is refused, or within the limits, and means the same when it is written again.
func FuzzQuery(f *testing.F) {
	for _, raw := range []string{"", "peer=host+b%26c", "drops=1&count=5&snap=262144", "snap=1&snap=2", "count=-1", "size=1", "%zz", "drops=" + strings.Repeat("x", 2000), strings.Repeat("x", 2000) + "=&" + strings.Repeat("x", 2000) + "="} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := ParseQuery(v)
		if err != nil {
			if q != (Query{}) || len(err.Error()) > 1000 {
				t.Fatalf("%q: %+v, %v", raw, q, err)
			}
			return
		}
		if q.Count < 0 || q.Snap < 0 || q.Snap > MaxSnap || len(q.Peer) > maxName {
			t.Fatalf("%q: %+v", raw, q)
		}
		again, err := url.ParseQuery(strings.TrimPrefix(q.String(), "?"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseQuery(again); err != nil || got != q {
			t.Fatalf("%q: %+v, written %q, read %+v, %v", raw, q, q, got, err)
		}
	})
}

// FuzzStream: whatever comes is an error or packets that can be used.
func FuzzStream(f *testing.F) {
	f.Add(capture.AppendText(append(Names{}.Update(hello("tx", "rx"), Names{peerA: "a"}), packets(f, 0, 1)...), capture.End, ""))
	f.Add(capture.AppendText(nil, capture.Hello, `{"v":1,"verdicts":["tx",""]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := NewReader(bytes.NewReader(b))
		for p := (Packet{}); err == nil; {
			if err = s.Next(&p); err == nil && (len(p.Data) > p.Length || strings.ContainsAny(p.Peer+p.Verdict, "\x1b\n")) {
				t.Fatalf("packet %+v", p)
			}
		}
		if err != io.EOF && err.Error() == "" || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	})
}
