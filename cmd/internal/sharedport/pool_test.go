package sharedport

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// TestPortCountsOn: a port that comes back goes on counting where the one before it ended; another one begins at zero.
func TestPortCountsOn(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p := Pool{Estate: &handover.Estate{Log: log}, Forget: func([]string) {}}
	config := func(port uint16) userspace.Config {
		local := netip.MustParseAddr("127.0.0.1")
		return userspace.Config{Log: log, VNI: 1, Port: port, MTU: 1450, Underlays: []dataplane.Underlay{{Link: 1, Local: local, Public: local}}}
	}
	take := func(port uint16) (stats func() dataplane.Stats, giveBack func()) {
		t.Helper()
		shared, giveBack, err := p.Take(config(port), log)
		if err != nil {
			t.Fatal(err)
		}
		return shared.Stats, giveBack
	}
	first, end := take(4001)
	_, endSecond := take(4001)
	if got := first(); got != (dataplane.Stats{}) {
		t.Errorf("a new port has counted %+v", got)
	}
	endSecond()
	if len(p.past) != 0 {
		t.Error("a port that is in use is remembered")
	}
	end()
	if len(p.past) != 1 {
		t.Fatalf("%d ports are remembered", len(p.past))
	}
	for key := range p.past {
		p.past[key] = dataplane.Stats{RxPackets: 3}
	}
	for range 2 {
		again, end := take(4001)
		other, endOther := take(4002)
		if got := again(); got.RxPackets != 3 || other().RxPackets != 0 {
			t.Errorf("counted %d, and %d at the other port", got.RxPackets, other().RxPackets)
		}
		end()
		endOther()
	}
}

// TestPastIsBounded: whoever writes network configs cannot fill the memory with ports.
func TestPastIsBounded(t *testing.T) {
	var p Pool
	for i := range 2 * maxPast {
		p.remember(fmt.Sprint(i), dataplane.Stats{})
	}
	if len(p.past) != maxPast {
		t.Errorf("%d are remembered, want %d", len(p.past), maxPast)
	}
	if p.remember("0", dataplane.Stats{RxPackets: 1}); p.past["0"].RxPackets != 1 {
		t.Error("one that is remembered is not brought up to date")
	}
}
