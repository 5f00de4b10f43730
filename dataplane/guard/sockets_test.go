package guard

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/userspace"
	"github.com/overlayd/overlayd/encap"
)

// joinSockets is join, but for host 0, where a process forwards.
func (w *world) joinSockets(alone bool) *userspace.Dataplane {
	w.t.Helper()
	w.join()
	h := w.hosts[0]
	h.dp.Close()
	h.Run("ip", "link", "del", h.device())
	h.Must(func() error { _, err := Cleanup(1); return err })
	c := testConfig(w.t)
	c.IPv4, c.IPv6, c.Local, c.Alone = !w.v6, w.v6, []netip.Addr{h.addr}, alone
	if w.config != nil {
		w.config(&c)
	}
	h.guard = openIn(w.t, h.NS, c)
	h.guard.Forwards(false)
	var d *userspace.Dataplane
	h.Must(func() (err error) {
		d, err = userspace.Open(userspace.Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Port: testPort, MTU: 1500 - encap.Overhead(h.addr), Offloads: userspace.AllOffloads,
			SourceCheck: c.Check, AnyPeerFrom: c.AnyPeerFrom, Mark: DefaultMark, Underlays: []dataplane.Underlay{{Local: h.addr, Public: h.addr, MAC: dataplane.MAC(h.addr, 1)}}})
		return err
	})
	h.sockets = d
	v := w.lastWanted(h)
	v.VTEPs = d.VTEPs()
	h.guard.sync(w.t, h.NS, v)
	h.Must(func() error { _, err := d.Sync(context.Background(), v); return err })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Do(func() error { return d.Run(ctx, func() {}) }) }()
	w.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, d.Close()); err != nil {
			w.t.Error(err)
		}
	})
	return d
}

// TestSockets: in front of a process's sockets floods are dropped, but for a few, which are dropped and counted for what
// they are; and the rest is as with the kernel.
func TestSockets(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		d := w.joinSockets(true)
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		w.check(100, 1400, 8000)
		const many = 300
		b.Must(func() error { _, err := Cleanup(1); return err }) // b's processes may send as it does
		stray := map[bool]netip.Addr{false: netip.MustParseAddr("8.8.8.8"), true: netip.MustParseAddr("2001:4860::8")}[w.v6]
		for name, f := range map[string]struct {
			frame []byte
			why   dataplane.Drop // of the few
		}{
			"a VTEP, with another source": {a.frame(1, packet(stray, a.podAddr(w.v6), 1, receivePort, []byte("flood"))), dataplane.DropBadSource},
			"unknown VTEP":                {a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, []byte("flood"))), dataplane.DropUnknownVTEP},
			"other network":               {a.frame(2, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, []byte("flood"))), dataplane.DropBadVNI},
			"garbage":                     {[]byte("garbage"), dataplane.DropBadVNI},
		} {
			before := d.Stats().Drops[f.why] + d.Stats().Drops[dataplane.DropBadHeader]
			a.dropped()
			from, src, many := w.stranger, w.strange, uint64(many)
			if f.why == dataplane.DropBadSource {
				from, src, many = b.NS, b.addr, 10*many
			}
			if err := sendMany(from, src, a.addr, int(many), f.frame); err != nil {
				t.Fatal(err)
			}
			var flood uint64
			eventually(t, name, func() bool {
				flood += a.dropped()[dataplane.DropFlood]
				few := d.Stats().Drops[f.why] + d.Stats().Drops[dataplane.DropBadHeader] - before
				return flood+few == many && flood > many/3
			})
		}
		w.expect("a process", a, dataplane.DropEgress, func(text []byte) {
			if err := sendSegments(a.NS, a.addr, b.addr, b.frame(1, packet(a.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text))); !errors.Is(err, unix.EPERM) {
				t.Error(err)
			}
		})
		w.expect("a pod spoofs", a, dataplane.DropBadSource, func(text []byte) {
			sendRaw(a.pod, packet(c.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text))
		})
		w.expect("a pod in the name of a VTEP", a, dataplane.DropUnknownVTEP, func(text []byte) {
			sendRaw(a.pod, packet(b.addr, a.addr, 1, testPort, a.frame(1, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))))
		})
		w.stranger.Run("ip", "route", "replace", testNetworks[family6(w.v6)].String(), "via", a.addr.String())
		w.expect("plain", a, dataplane.DropPlainSource, func(text []byte) {
			sendRaw(w.stranger, packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text))
		})
		w.expect("plain, to be encapsulated", a, dataplane.DropPlainSource, func(text []byte) {
			sendRaw(w.stranger, packet(a.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text))
		})
		if w.v6 { // the kernel drops IPv4 itself
			w.expect("plain, to be encapsulated as from its host", a, dataplane.DropBadSource, func(text []byte) {
				sendRaw(w.stranger, packet(a.addr, b.podAddr(true), 1, receivePort, text))
			})
		}
	})
}
