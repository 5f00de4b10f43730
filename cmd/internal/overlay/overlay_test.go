package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// dummy is a part that notes what is done to it. It leaves a mark in what it hands on: one more
// network of the overlay.
type dummy struct {
	name      string
	calls     *[]string
	err, gone error // of Sync, of Prune
	ask       int   // times that Run asks for a Sync of all
}

func (d *dummy) note(what string) { *d.calls = append(*d.calls, what+" "+d.name) }

func (d *dummy) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	d.note(fmt.Sprint("sync ", len(w.Networks)))
	w.Networks = append(slices.Clone(w.Networks), netip.MustParsePrefix("198.51.100.0/24"))
	return w, d.err
}

func (d *dummy) Prune(_ context.Context, w dataplane.Wanted) error {
	d.note(fmt.Sprint("prune ", len(w.Networks)))
	return d.gone
}

func (d *dummy) Run(ctx context.Context, again func()) error {
	for range d.ask {
		again()
	}
	<-ctx.Done()
	return nil
}

func (d *dummy) Status() dataplane.PartStatus {
	return dataplane.PartStatus{Name: d.name, State: dataplane.StateOK}
}

func (d *dummy) Close() error { d.note("close"); return nil }

// spec is the line that adds the part to an overlay.
func (d *dummy) spec(lack string) Spec {
	return Spec{Name: d.name, Lack: lack, Open: func() (dataplane.Part, error) { d.note("open"); return d, nil }}
}

var (
	errDown = errors.New("down")
	errPeer = error(&dataplane.PeerError{Err: errors.New("refused")})
)

func testAttrs(err error) []any { return []any{"err", err} }

// left is a dataplane that another process has left working.
type left struct{ dummy }

func (l *left) VTEPs() []dataplane.VTEP   { return nil }
func (l *left) Stats() dataplane.Stats    { return dataplane.Stats{} }
func (l *left) Resume(w dataplane.Wanted) { l.note(fmt.Sprint("resume ", len(w.Networks))) }

// TestResume: what another process has left working goes on before any part is synced, once, and in the order of the parts.
func TestResume(t *testing.T) {
	var calls []string
	rules := &dummy{name: "rules", calls: &calls}
	forward := Spec{Name: "forwarding", Open: func() (dataplane.Part, error) {
		return NewForwarding(&left{dummy{name: "tun", calls: &calls}}, fit.Userspace, nil, func() {}), nil
	}}
	guard := Spec{Name: "guard", Open: func() (dataplane.Part, error) { return &left{dummy{name: "guard", calls: &calls}}, nil }}
	o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{guard, rules.spec(""), forward})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := o.Sync(t.Context(), dataplane.Wanted{Networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}); err != nil {
			t.Fatal(err)
		}
	}
	const once = "sync 1 guard, sync 2 rules, sync 3 tun, prune 3 tun, prune 2 rules, prune 1 guard"
	if got, want := strings.Join(calls, ", "), "open rules, resume 1 guard, resume 1 tun, "+once+", "+once; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestOrderOfParts: parts are opened and synced in order, each with what the one before it leaves,
// and pruned and closed in the reverse order, each with what it was given. A part whose successor
// failed as a whole is not pruned.
func TestOrderOfParts(t *testing.T) {
	for _, c := range []struct {
		name            string
		err, gone       [3]error
		optional        [3]bool
		apart           [3]bool
		want            string // calls of Sync and Prune
		errors, degrade int    // joined errors, degraded parts
	}{
		{name: "all well", want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "a peer of the last", err: [3]error{2: errPeer}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "the last", err: [3]error{2: errDown}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c"},
		{name: "the middle", err: [3]error{1: errDown}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b"},
		{name: "the first", err: [3]error{0: errDown}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "all", err: [3]error{errDown, errDown, errDown}, errors: 3, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c"},
		{name: "prune of one", gone: [3]error{1: errDown}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "the first, which is optional", err: [3]error{0: errDown}, optional: [3]bool{0: true}, degrade: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "the middle, which is optional", err: [3]error{1: errDown}, optional: [3]bool{1: true}, degrade: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b"},
		{name: "the middle, which is apart", err: [3]error{1: errDown}, apart: [3]bool{1: true}, errors: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
		{name: "the last, and one that is apart", err: [3]error{1: errDown, 2: errDown}, apart: [3]bool{1: true}, errors: 2, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c"},
		{name: "prune of an optional one", gone: [3]error{1: errDown}, optional: [3]bool{1: true}, degrade: 1, want: "sync 1 a, sync 2 b, sync 3 c, prune 3 c, prune 2 b, prune 1 a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls []string
			var specs []Spec
			for i, name := range []string{"a", "b", "c"} {
				d := &dummy{name: name, calls: &calls, err: c.err[i], gone: c.gone[i]}
				spec := d.spec(map[bool]string{true: "without it nothing is dropped"}[c.optional[i]])
				spec.Apart = c.apart[i]
				specs = append(specs, spec)
			}
			o, err := Open(slog.New(slog.DiscardHandler), testAttrs, specs)
			if err != nil {
				t.Fatal(err)
			}
			err = o.Sync(t.Context(), dataplane.Wanted{Networks: make([]netip.Prefix, 1)})
			if n := countErrors(err); n != c.errors {
				t.Errorf("%d errors (%v), want %d", n, err, c.errors)
			}
			if degraded := countDegraded(o.Status()); degraded != c.degrade {
				t.Errorf("%d parts are degraded, want %d: %+v", degraded, c.degrade, o.Status())
			}
			o.Close()
			o.Close()
			if got, want := strings.Join(calls, ", "), "open a, open b, open c, "+c.want+", close c, close b, close a"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// TestEndIsNoFault: what fails because the session has ended is no fault of an optional part, and is not logged.
func TestEndIsNoFault(t *testing.T) {
	var calls []string
	var log bytes.Buffer
	rules := &dummy{name: "rules", calls: &calls, err: fmt.Errorf("iptables --version: %w", errDown)}
	o, err := Open(slog.New(slog.NewTextHandler(&log, nil)), testAttrs, []Spec{rules.spec("no rules")})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx    context.Context
		faults int
	}{{ended, 0}, {t.Context(), 1}, {ended, 1}} {
		err := o.Sync(c.ctx, dataplane.Wanted{})
		if lines := strings.Count(log.String(), "no rules"); lines != c.faults || countDegraded(o.Status()) != c.faults || (err == nil) != (c.ctx != ended) {
			t.Errorf("ended %t: %d lines, %+v, %v; want %d", c.ctx == ended, lines, o.Status(), err, c.faults)
		}
	}
}

func countErrors(err error) int {
	if err == nil {
		return 0
	}
	return len(err.(interface{ Unwrap() []error }).Unwrap())
}

func countDegraded(all []dataplane.PartStatus) (n int) {
	for _, s := range all {
		if s.State == dataplane.StateDegraded && strings.Contains(s.Err, errDown.Error()) && !s.Since.IsZero() {
			n++
		}
	}
	return n
}

// eager is a part that asks for another Sync after each one, and cannot reach a peer.
type eager struct {
	dummy
	synced chan struct{}
}

func (e *eager) Sync(_ context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	pace.Wake(e.synced)
	return w, errPeer
}

func (e *eager) Run(ctx context.Context, again func()) error {
	for range e.ask {
		<-e.synced
		again()
	}
	<-e.synced
	return errDown
}

// TestResyncsOfOnePeer: a peer that cannot be reached is logged once, however often a part asks for a Sync.
func TestResyncsOfOnePeer(t *testing.T) {
	var calls []string
	e := &eager{dummy{name: "a", calls: &calls, ask: 20}, make(chan struct{}, 1)}
	var log strings.Builder
	o, err := Open(slog.New(slog.NewTextHandler(&log, nil)), testAttrs, []Spec{{Name: "a", Open: func() (dataplane.Part, error) { return e, nil }}})
	if err != nil {
		t.Fatal(err)
	}
	o.Sync(t.Context(), dataplane.Wanted{})
	if err := o.Run(t.Context()); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "peers cannot be reached"); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, log.String())
	}
}

// TestPartThatCannotBeOpened: one that is required ends the overlay and closes those before it; one
// that is optional is left out and reported.
func TestPartThatCannotBeOpened(t *testing.T) {
	var calls []string
	a, c := &dummy{name: "a", calls: &calls}, &dummy{name: "c", calls: &calls}
	broken := Spec{Name: "b", Open: func() (dataplane.Part, error) { return nil, errDown }}
	if _, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{a.spec(""), broken, c.spec("")}); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
	if want := []string{"open a", "close a"}; !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q", calls, want)
	}
	calls, broken.Lack = nil, "without it nothing is dropped"
	var log strings.Builder
	o, err := Open(slog.New(slog.NewTextHandler(&log, nil)), testAttrs, []Spec{a.spec(""), broken, c.spec("")})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := o.Sync(t.Context(), dataplane.Wanted{Networks: make([]netip.Prefix, 1)}); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), broken.Lack); n != 1 {
		t.Errorf("reported %d times, want once:\n%s", n, log.String())
	}
	if got := o.Status(); len(got) != 3 || got[1].Name != "b" || countDegraded(got) != 1 {
		t.Errorf("status %+v", got)
	}
	if o.Close(); calls[2] != "sync 1 a" || calls[3] != "sync 2 c" {
		t.Errorf("got %q", calls)
	}
}

// TestOptionalPartRecovers: its fault is reported once as long as it lasts, and not after that.
func TestOptionalPartRecovers(t *testing.T) {
	var calls []string
	var log strings.Builder
	d := &dummy{name: "a", calls: &calls}
	o, err := Open(slog.New(slog.NewTextHandler(&log, nil)), testAttrs, []Spec{d.spec("lacks")})
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{nil, errDown, errDown, nil, errDown} {
		d.err = err
		o.Sync(t.Context(), dataplane.Wanted{})
		if got := countDegraded(o.Status()); (got > 0) != (err != nil) {
			t.Errorf("Sync %d: %d parts degraded after %v", i, got, err)
		}
	}
	if n := strings.Count(log.String(), "lacks"); n != 2 {
		t.Errorf("reported %d times, want twice:\n%s", n, log.String())
	}
}

// carrying is a dataplane.
type carrying struct{ *dummy }

func (c carrying) VTEPs() []dataplane.VTEP {
	return []dataplane.VTEP{{Addr: netip.MustParseAddr("192.0.2.1")}}
}
func (c carrying) Stats() dataplane.Stats { return dataplane.Stats{TxPackets: 3} }

// TestReached: the overlay knows what its forwarding part was given last, and only if that came about.
func TestReached(t *testing.T) {
	var calls []string
	before, d := &dummy{name: "a", calls: &calls}, &dummy{name: "b", calls: &calls}
	o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{before.spec(""), {Name: "forwarding", Open: func() (dataplane.Part, error) {
		return NewForwarding(carrying{d}, fit.Kernel, nil, func() { calls = append(calls, "given back") }), nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if o.Reached() != nil {
		t.Error("something was reached before a Sync")
	}
	for _, c := range []struct {
		mtu  int
		err  error
		want int
	}{{10, errPeer, 10}, {20, errDown, 10}, {30, nil, 30}} {
		d.err = c.err
		o.Sync(t.Context(), dataplane.Wanted{MTU: c.mtu})
		if got := o.Reached(); got.MTU != c.want || len(got.Networks) != 1 {
			t.Errorf("MTU %d, %v: reached %+v, want MTU %d and the mark of the first part", c.mtu, c.err, got, c.want)
		}
	}
	if got := o.Forwarding().Stats(); o.Mode() != fit.Kernel || len(o.VTEPs()) != 1 || got.TxPackets != 3 {
		t.Errorf("mode %s, VTEPs %v, stats %v", o.Mode(), o.VTEPs(), got)
	}
	if o.Close(); !slices.Equal(calls[len(calls)-3:], []string{"close b", "given back", "close a"}) {
		t.Errorf("got %q", calls)
	}
}

// TestMarkDirect: of the peers that are up, those are direct that a direct route leads to. What the
// controller published is not changed.
func TestMarkDirect(t *testing.T) {
	a, b, c := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("10.5.3.0/24")
	published := []controller.PeerStatus{{Subnet: a, State: controller.PeerUp}, {Subnet: b, State: controller.PeerUp}, {Subnet: c, State: controller.PeerFailed}}
	o := &Overlay{}
	if got := o.markDirect(published); !slices.Equal(got, published) {
		t.Errorf("before a Sync: %v", got)
	}
	o.reached.Store(&dataplane.Wanted{Peers: []dataplane.Peer{{Subnets: []netip.Prefix{a, c}, Direct: true}, {Subnets: []netip.Prefix{b}}}})
	var states []controller.PeerState
	for _, p := range o.markDirect(published) {
		states = append(states, p.State)
	}
	if want := []controller.PeerState{controller.PeerDirect, controller.PeerUp, controller.PeerFailed}; !slices.Equal(states, want) {
		t.Errorf("got %v, want %v", states, want)
	}
	if published[0].State != controller.PeerUp {
		t.Error("what was published has changed")
	}
}

// TestOverlayWithoutForwarding: it publishes no VTEP and counts nothing; its last part says which peers
// direct routes lead to.
func TestOverlayWithoutForwarding(t *testing.T) {
	var calls []string
	d := &dummy{name: "a", calls: &calls}
	o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{d.spec("")})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.Sync(t.Context(), dataplane.Wanted{}); err != nil {
		t.Error(err)
	}
	if o.VTEPs() != nil || o.Reached() == nil || o.Mode() != "" || o.Forwarding() != nil {
		t.Errorf("it forwards: %v, %v, %s", o.VTEPs(), o.Reached(), o.Mode())
	}
}

// When a part asks for a Sync of all and a peer is refused, the part that refused the peer tries it again: not
// everything is synced again for ever. After any other fault it is.
func TestResyncAfterRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		calls int
	}{
		"a peer":     {errors.Join(errPeer), 1},
		"everything": {errDown, 2}, // at 0 s and 0.75 s to 1.25 s, and not before 1.875 s
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls []string
			d := &dummy{name: "a", calls: &calls, err: tc.err, ask: 1}
			o, err := Open(slog.New(slog.DiscardHandler), testAttrs, []Spec{d.spec("")})
			if err != nil {
				t.Fatal(err)
			}
			o.last = &dataplane.Wanted{}
			ctx, cancel := context.WithTimeout(t.Context(), 1800*time.Millisecond)
			defer cancel()
			if err := o.Run(ctx); err != nil {
				t.Error(err)
			}
			syncs := slices.DeleteFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "sync") })
			if len(syncs) != tc.calls {
				t.Errorf("Sync was called %d times, want %d", len(syncs), tc.calls)
			}
		})
	}
}
