package carrier

import (
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestReceiverExpectsTheSameSize has many datagrams wait at once: of long ones a system call brings as many as the cache has room
// for, after short ones as many as ever.
func TestReceiverExpectsTheSameSize(t *testing.T) {
	t.Parallel()
	n := netnstest.New(t)
	addr := netip.MustParseAddr("127.0.0.1")
	snd, rcv := openSockets(t, n, addr)
	e := entryTo(netip.AddrPortFrom(addr, testPort))
	// batches sends datagrams, receives all of them and returns how many each system call brought.
	batches := func(datagrams, size int) (all []int) {
		var c Counters
		p := blank(size)
		for range datagrams {
			snd.Send(&p, e, false, &c)
			snd.Flush(&c) // each by itself, so that UDP_GRO joins none
		}
		var d Datagram
		flush := func() { all = append(all, 0) }
		all = []int{0}
		for range datagrams {
			if err := rcv.Receive(&d, flush); err != nil {
				t.Fatal(err)
			}
			all[len(all)-1]++
		}
		return all
	}
	const long = 60000
	most := receiveBytes / long
	batches(1, long)
	for i, got := range batches(20, long)[1:] { // the first is the batch before
		if got > most {
			t.Errorf("of long datagrams call %d brought %d, more than %d", i, got, most)
		}
	}
	batches(receiveSlots, 100)
	batches(1, 100)
	if rcv.slots != receiveSlots {
		t.Errorf("after short datagrams a call has room for %d, want %d", rcv.slots, receiveSlots)
	}
}
