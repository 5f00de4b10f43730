package carrier

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/capture"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/packettest"
)

// TestCaptureOfWhatTheKernelRefuses: each datagram of a run that it does not take is shown as what it would have been.
func TestCaptureOfWhatTheKernelRefuses(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	for errno, why := range map[unix.Errno]dataplane.Drop{unix.ENOBUFS: dataplane.DropWriteError, unix.EMSGSIZE: dataplane.DropTooBig} {
		snd, _ := openSockets(t, netnstest.New(t), addr)
		snd.transmitter.(*udpTransmitter).sendmmsg = func(int, []mmsghdr) (int, unix.Errno) { return 0, errno }
		var hub capture.Hub
		var c Counters
		hub.Join(7, &c.Point)
		watch, err := hub.Start(capture.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		one, super := bufOf(packettest.UDP(podA, podB, 1, 2, []byte("hello"))), superpacket(3000, 1398)
		want := bytes.Clone(one.Datagram())
		for _, p := range []*Packet{&one, &super} {
			snd.Send(p, entryTo(netip.AddrPortFrom(addr, testPort)), false, &c)
		}
		snd.Flush(&c)
		payload, seen := 0, false
		for _, p := range capturedPackets(t, watch) {
			if p.Verdict != capture.Dropped(why) || p.Form != capture.Datagram || p.Peer != addr || p.VNI != 7 || p.Length != len(p.Data) {
				t.Errorf("%v: captured %+v", errno, p)
			}
			if bytes.Equal(p.Data, want) {
				seen = true
				continue
			}
			payload += p.Length - 22 - 40
		}
		if !seen || payload != 3000 || c.Dropped(why) != 2 {
			t.Errorf("%v: captured the packet: %t, and %d bytes of the superpacket; counted %d packets", errno, seen, payload, c.Dropped(why))
		}
	}
}

func capturedPackets(t *testing.T, c *capture.Capture) (ps []capture.Packet) {
	t.Helper()
	r := capture.NewReader(bytes.NewReader(c.Append(nil, 1<<20)))
	for {
		var f capture.Frame
		if err := r.Next(&f); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		f.Packet.Data = bytes.Clone(f.Packet.Data)
		ps = append(ps, f.Packet)
	}
}
