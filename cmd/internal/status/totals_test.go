package status

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// TestTotals: what counts is added up, by part and kind; what is of now is not.
func TestTotals(t *testing.T) {
	var sum Totals
	at := time.Unix(1, 0)
	for _, r := range []Repairs{{Part: "a", Kind: "x", Count: 2, Last: at}, {Part: "a", Kind: "y"}, {Part: "b", Kind: "x", Count: 1, Last: at},
		{Part: "a", Kind: "x", Count: 3, Last: at.Add(1)}} {
		sum.Repaired(r)
	}
	want := []Repairs{{Part: "a", Kind: "x", Count: 5, Last: at.Add(1)}, {Part: "b", Kind: "x", Count: 1, Last: at}}
	if !slices.Equal(sum.Repairs, want) {
		t.Errorf("got %+v", sum.Repairs)
	}
	sum.Control = controller.Stats{Leases: 3, Peers: 2, Syncs: 4}
	if got := sum.Past().Control; got != (controller.Stats{Syncs: 4}) {
		t.Errorf("without a session: %+v", got)
	}
}

// TestTotalsSince: what a dataplane had counted before is left out, but not of a peer that has come again.
func TestTotalsSince(t *testing.T) {
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	at := time.Unix(1, 0)
	before := Totals{Carried: true, Counters: dataplane.Stats{TxPackets: 3}, Repairs: []Repairs{{Part: "p", Kind: "x", Count: 2, Last: at}, {Part: "p", Kind: "y", Count: 1, Last: at}},
		Traffic: map[netip.Addr]dataplane.Traffic{a: {TxBytes: 5, RxBytes: 6}, b: {TxBytes: 7}}}
	now := Totals{Carried: true, Counters: dataplane.Stats{TxPackets: 8}, Repairs: []Repairs{{Part: "p", Kind: "x", Count: 2, Last: at}, {Part: "p", Kind: "y", Count: 4, Last: at}},
		Traffic: map[netip.Addr]dataplane.Traffic{a: {TxBytes: 6, RxBytes: 8}, b: {TxBytes: 2}, c: {RxBytes: 1}}}
	got := now.Since(before)
	want := map[netip.Addr]dataplane.Traffic{a: {TxBytes: 1, RxBytes: 2}, b: {TxBytes: 2}, c: {RxBytes: 1}}
	if got.Counters.TxPackets != 5 || !maps.Equal(got.Traffic, want) || !slices.Equal(got.Repairs, []Repairs{{Part: "p", Kind: "y", Count: 3, Last: at}}) {
		t.Errorf("got %+v", got)
	}
	if now.Traffic[a].TxBytes != 6 {
		t.Error("what others read was changed")
	}
	if got := now.Since(Totals{}); !reflect.DeepEqual(got, now) {
		t.Errorf("since nothing: %+v", got)
	}
}
