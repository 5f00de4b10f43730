// Package carriertest is what every implementation of dataplane/carrier has to pass.
package carriertest

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

// The packets' own ends.
var (
	src = netip.MustParseAddr("10.42.1.2")
	dst = netip.MustParseAddr("10.42.2.2")
)

// Sender checks a sender whose datagrams come out at the other end: out returns the next one. The sender
// gets packets with that headroom, and superpackets too if it splits them.
func Sender(t *testing.T, s carrier.Sender, e *carrier.Entry, headroom int, splits bool, out func() []byte) {
	t.Helper()
	var c carrier.Counters
	for i, fragment := range []bool{false, true, false} {
		b := packettest.UDP(src, dst, uint16(i), 2, fmt.Appendf(nil, "packet %d", i))
		p := carrier.Packet{Buf: append(make([]byte, headroom), b...), At: headroom}
		e.Template.Put(p.Datagram(), encap.EtherTypeIPv4)
		want := bytes.Clone(p.Datagram())
		s.Send(&p, e, fragment, &c)
		s.Flush(&c)
		if got := out(); !bytes.Equal(got, want) {
			t.Errorf("datagram %d: got %x, want %x", i, got, want)
		}
	}
	packets := uint64(3)
	if splits {
		packets++
		super := superpacket(headroom, 3000, 1000)
		s.Send(&super, e, false, &c)
		s.Flush(&c)
		for i := range 3 {
			if got := out(); len(got) != encap.HeaderLen+40+1000 || !packettest.Sound(got[encap.HeaderLen:]) {
				t.Errorf("segment %d is %d bytes long", i, len(got))
			}
		}
	}
	s.Flush(&c) // nothing is left
	c.Publish()
	var st dataplane.Stats
	if c.AddTo(&st.TxPackets, &st.TxBytes, &st); st.TxPackets != packets || st.Drops != [dataplane.NumDrops]uint64{} {
		t.Errorf("counted %+v, want %d packets", st, packets)
	}
}

// Receiver checks a receiver that is fed by the other end: in sends it a datagram.
func Receiver(t *testing.T, r carrier.Receiver, in func(datagram []byte)) {
	t.Helper()
	flushed := 0
	flush := func() { flushed++ }
	var d carrier.Datagram
	for i, size := range []int{0, 100, 1400, 1} {
		want := append(make([]byte, encap.HeaderLen), packettest.UDP(src, dst, uint16(i), 2, make([]byte, size))...)
		in(want)
		d = carrier.Datagram{ECN: encap.ECNCE, Exact: true, Offload: encap.Offload{GSO: encap.GSOUDP, Size: 9}} // none of it may stay
		if err := r.Receive(&d, flush); err != nil {
			t.Fatal(err)
		}
		_, guesses := r.(carrier.Guesser)
		if !bytes.Equal(d.Buf, want) || !d.From.IsValid() || d.ECN != encap.ECNNot || d.Offload != (encap.Offload{}) || d.Exact == guesses {
			t.Errorf("datagram %d is %+v, want %x", i, d, want)
		}
		flushed = 0
	}
	r.Stop()
	for range 2 {
		if err := r.Receive(&d, flush); err == nil {
			t.Error("Receive after stop succeeded")
		}
	}
	if flushed == 0 {
		t.Error("what was put off for the last datagram was not flushed")
	}
}

// superpacket returns a TCP superpacket with n bytes of payload, size in each segment.
func superpacket(headroom, n int, size uint16) carrier.Packet {
	b := packettest.TCP(src, dst, 1, make([]byte, n))
	var ip encap.IP
	_ = encap.ParseIP(b, &ip) // it is one of ours
	o, _ := encap.SuperOffload(b, &ip, size)
	return carrier.Packet{Buf: append(make([]byte, headroom), b...), At: headroom, Offload: o}
}
