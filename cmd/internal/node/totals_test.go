package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// counting is a dataplane that has carried a packet more each time that it is asked, and repaired a route more.
type counting struct {
	*fakeForward
	asked atomic.Uint64
}

func (c *counting) Traffic() map[netip.Addr]dataplane.Traffic {
	return map[netip.Addr]dataplane.Traffic{netip.MustParseAddr("192.0.2.9"): {RxBytes: c.asked.Add(1)}, netip.MustParseAddr("192.0.2.10"): {}}
}

func (c *counting) Stats() dataplane.Stats {
	return dataplane.Stats{TxPackets: c.asked.Add(1)}
}

func (c *counting) Status() dataplane.PartStatus {
	n := c.asked.Add(1)
	return dataplane.PartStatus{Name: "forwarding", State: dataplane.StateOK, Objects: []dataplane.ObjectStatus{
		{Kind: "route", Repairs: n, LastRepair: time.Unix(int64(n), 0)}, {Kind: "device"}}}
}

// countersOf lists what counts in a status, by name.
func countersOf(n status.Network) map[string]uint64 {
	all := map[string]uint64{"sessions": n.Sessions}
	v := reflect.ValueOf(n.Control)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Uint64 {
			all[v.Type().Field(i).Name] = f.Uint()
		}
	}
	for name, value := range n.Counters {
		all[name] = value
	}
	for _, p := range n.Traffic {
		all["from "+p.VTEP.String()] = p.RxBytes
	}
	for _, r := range n.Repairs {
		all[r.Part+" "+r.Kind] += r.Count
	}
	return all
}

// noneFell checks that every counter that was there is there still, and is no less.
func noneFell(before, now map[string]uint64) error {
	for name, was := range before {
		if is, ok := now[name]; !ok || is < was {
			return fmt.Errorf("%s fell from %d to %d (%v)", name, was, is, ok)
		}
	}
	return nil
}

// TestCountersNeverFall: whoever asks again and again, while sessions end and begin, sees no counter that falls. In the
// end the sum of all sessions is there, also between two of them.
func TestCountersNeverFall(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	var opened []*counting
	w.wrap = func(f *fakeForward) dataplane.Dataplane {
		c := &counting{fakeForward: f}
		opened = append(opened, c)
		return c
	}
	w.setConfig(w.config(0, ""))
	w.start()
	last := map[string]uint64{}
	watch := func() bool {
		if all := w.daemon.Status(); len(all) == 1 {
			now := countersOf(all[0])
			if err := noneFell(last, now); err != nil {
				t.Fatal(err)
			}
			last = now
		}
		return true
	}
	const rounds = 3
	for i := range rounds {
		w.await("ready", func() bool { return watch() && w.daemon.Ready() && w.status().VNI == w.vni+uint32(i) })
		w.setConfig(w.config(uint32(i+1), ""))
	}
	w.await("in the last session", func() bool { return watch() && w.daemon.Ready() && w.status().VNI == w.vni+rounds })
	watch() // what came between its last look and ready
	if last["sessions"] != rounds+1 || last["Syncs"] < rounds+1 || last["tx_packets"] == 0 || last["from 192.0.2.9"] < rounds+1 || len(w.status().Traffic) != 1 || last["forwarding route"] == 0 {
		t.Errorf("got %v", last)
	}
	w.cancel()
	if err := w.ended(); err != nil {
		t.Error(err)
	}
	sum := uint64(0)
	for _, c := range opened {
		sum += c.asked.Load()
	}
	n := w.status()
	if watch(); n.Counters["tx_packets"] == 0 || n.Counters["tx_packets"] > sum || n.Control.Peers != 0 || n.Control.Leases != 0 {
		t.Errorf("after the end: %v and %+v, at most %d", n.Counters, n.Control, sum)
	}
	if again := w.status(); !reflect.DeepEqual(n, again) {
		t.Errorf("what has ended counts on: %+v, then %+v", n, again)
	}
}

// overlayOf is an overlay of that part only.
func overlayOf(t *testing.T, p dataplane.Part) *overlay.Overlay {
	t.Helper()
	o, err := overlay.Open(slog.New(slog.DiscardHandler), nil, []overlay.Spec{{Name: "only", Open: func() (dataplane.Part, error) { return p, nil }}})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestStatsAttrs: what is not zero is listed; an overlay that carries no packets has nothing to list.
func TestStatsAttrs(t *testing.T) {
	carries := overlay.NewForwarding(&fakeForward{}, fit.Kernel, nil, func() {})
	if got := (&Session{overlay: overlayOf(t, carries)}).statsAttrs(); fmt.Sprint(got) != "[rx_packets 4]" {
		t.Errorf("got %v", got)
	}
	if got := (&Session{overlay: overlayOf(t, dummy{})}).statsAttrs(); got != nil {
		t.Errorf("without a dataplane: %v", got)
	}
}

// TestFilesInTheStatus: the status tells of a file that cannot be written, since when, and what to do, until it can be.
func TestFilesInTheStatus(t *testing.T) {
	d := newTestDaemon(true)
	d.cfg.Fix = func(string, error) string { return "make room" }
	n := d.newNetwork("a")
	n.publishNoSession(nil)
	var since time.Time
	for i, c := range []struct{ noClaim, err error }{
		{}, {err: unix.ENOSPC}, {noClaim: unix.EROFS}, {err: unix.EACCES}, {},
	} {
		n.noteFiles(func() { n.noFile, n.noClaim = c.err, c.noClaim })
		faults, want := n.Status().FileFaults, cmp.Or(c.noClaim, c.err)
		switch {
		case want == nil && len(faults) > 0:
			t.Errorf("step %d: %+v", i, faults)
		case want == nil:
		case len(faults) != 1 || faults[0].Err != want.Error() || faults[0].Fix != "make room" || i > 1 && !faults[0].Since.Equal(since):
			t.Errorf("step %d: %+v, want %v since %v", i, faults, want, since)
		default:
			since = faults[0].Since
		}
	}
}

// TestLateReaderOfASession: a reader that has the snapshot of a session that has just ended reads no more than those
// that come after it.
func TestLateReaderOfASession(t *testing.T) {
	n := newTestDaemon(true).newNetwork("a")
	counts := overlay.NewForwarding(&counting{fakeForward: &fakeForward{}}, fit.Kernel, nil, func() {})
	n.publish(snapshot{session: &Session{network: n, overlay: overlayOf(t, counts), controller: controller.New(controller.Config{})}})
	late := n.snapshot.Load()
	n.publishNoSession(nil)
	read, after := late.totals().Counters.TxPackets, n.snapshot.Load().totals().Counters.TxPackets
	if read > after || after == 0 {
		t.Errorf("the late reader got %d, the next %d", read, after)
	}
}

// TestNetworkCountsOn: a network that goes and comes back goes on counting, however many of its name overlap.
func TestNetworkCountsOn(t *testing.T) {
	d := newTestDaemon(true)
	counted := func() uint64 { return d.Status()[0].Control.Syncs }
	session := func(n *Network, syncs uint64) *Session {
		s := &Session{network: n, overlay: &overlay.Overlay{}, controller: controller.New(controller.Config{})}
		n.snapshot.Store(&snapshot{session: s, ended: status.Totals{Control: controller.Stats{Syncs: n.snapshot.Load().ended.Control.Syncs + syncs}}})
		return s
	}
	first := d.newNetwork("a")
	d.expects.begin(first)
	session(first, 5)
	second, third := d.newNetwork("a"), d.newNetwork("a")
	if got := counted(); got != 5 {
		t.Errorf("counted %d while the first ends", got)
	}
	session(first, 2) // it counts until its end
	d.expects.remove(first)
	d.expects.begin(second)
	d.expects.remove(second)
	if got := counted(); got != 5 {
		t.Errorf("counted %d before the third begins", got)
	}
	if d.expects.begin(third); counted() != 7 {
		t.Errorf("counted %d when the third begins", counted())
	}
	d.expects.remove(third)
	if len(d.Status()) != 0 {
		t.Error("a network that has gone is listed")
	}
	if d.newNetwork("a"); counted() != 7 {
		t.Errorf("counted %d when it is back", counted())
	}
	for i := range 2 * maxPast {
		d.expects.remove(d.newNetwork(fmt.Sprint(i)))
	}
	if len(d.expects.past) != maxPast {
		t.Errorf("%d networks are remembered, want %d", len(d.expects.past), maxPast)
	}
}
