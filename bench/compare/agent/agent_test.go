package agent

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/bench/testbed"
	"github.com/overlayd/overlayd/encap"
)

// TestCallsOfTheAgent: what an agent refuses names the reason.
func TestCallsOfTheAgent(t *testing.T) {
	a := new(Agent)
	if err := a.ReceiveUDP(ReceiveUDP{}, new(Received)); err == nil || !strings.Contains(err.Error(), "nothing listens") {
		t.Errorf("ReceiveUDP before ListenUDP: %v", err)
	}
	var out string
	if err := a.Exec(Command{Argv: []string{"sh", "-c", "echo $X; pwd"}, Env: []string{"X=y"}, Dir: "/"}, &out); err != nil || out != "y\n/" {
		t.Errorf("Exec: %q, %v", out, err)
	}
	if err := a.Start(Command{Argv: []string{"true"}, Log: "/nonexistent/log"}, new(Nothing)); err == nil {
		t.Error("started without its log")
	}
	if err := a.Check(Nothing{}, new(Nothing)); err != nil {
		t.Errorf("no daemon has ended: %v", err)
	}
	if err := a.ListenUDP(0, new(Nothing)); err != nil {
		t.Fatal(err)
	}
	to, err := a.udp[0].Local()
	if err != nil {
		t.Fatal(err)
	}
	var sent int64
	target := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
	if err := a.SendUDP(SendUDP{To: target, Size: 64, Time: 20 * time.Millisecond}, &sent); err != nil || sent <= udpPerClock || sent%udpPerClock != 0 {
		t.Errorf("sent %d packets, %v, want a multiple of %d, after which the clock is read", sent, err, udpPerClock)
	}
	var got Received
	if err := a.ReceiveUDP(ReceiveUDP{Time: 1}, &got); err != nil || got.Packets != udpPerClock || got.Bytes != got.Packets*(64-udpHeaders) {
		t.Errorf("received %+v, %v, want %d packets of 64 bytes after the first, which starts the clock", got, err, udpPerClock)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, c := range []struct {
		name   string
		values []int
		p      float64
		want   int
	}{
		{"one value", []int{7}, 99, 7},
		{"median of an even number is the lower one", []int{4, 1, 3, 2}, 50, 2},
		{"p99 of 100 is the 99th", hundred, 99, 99},
		{"p50 of 100 is the 50th", hundred, 50, 50},
		{"p99 of a few is the largest", []int{5, 9, 1}, 99, 9},
		{"p0 is the smallest", []int{5, 9, 1}, 0, 1},
		{"p100 is the largest", []int{5, 9, 1}, 100, 9},
	} {
		if got := percentile(slices.Clone(c.values), c.p); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMean(t *testing.T) {
	if got := mean([]time.Duration{1, 2, 6}); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
}

// Streams overlap: their time is from the first byte of any to the end of the last.
func TestTotal(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	streams := []testbed.Received{{Bytes: 1, First: at(2), End: at(5)}, {Bytes: 2, First: at(1), End: at(3)}, {Bytes: 4, First: at(3), End: at(6)}}
	if bytes, elapsed := total(streams); bytes != 7 || elapsed != 5*time.Second {
		t.Errorf("got %d bytes in %s, want 7 in 5s", bytes, elapsed)
	}
}

// TestFragments: both parts together are the payload of the packet.
func TestFragments(t *testing.T) {
	whole := Datagram(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1, 2, []byte("some payload"))
	if encap.Sum(whole[:20], 0) != 0xffff {
		t.Error("the header's checksum is wrong")
	}
	parts := fragment(whole)
	if got := string(parts[0][20:]) + string(parts[1][20:]); got != string(whole[20:]) {
		t.Errorf("got %q", got)
	}
	for i, want := range []uint16{0x2000, 1} {
		if p := parts[i]; binary.BigEndian.Uint16(p[6:]) != want || int(binary.BigEndian.Uint16(p[2:])) != len(p) {
			t.Errorf("part %d: % x", i, p[:20])
		}
	}
}
