package probe

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

// set replaces the status.
func (w *world) set(change func(s *controller.Status)) {
	next := *w.status.Load()
	next.Peers = slices.Clone(next.Peers)
	change(&next)
	w.status.Store(&next)
}

// TestFollow: peers come, go, and move to another VTEP; what is known of the others stays.
func TestFollow(t *testing.T) {
	run(t, 4, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		first := w.probe(0)
		w.mu.Lock()
		fifth := w.add(5)
		w.mu.Unlock()
		w.set(func(s *controller.Status) {
			s.Peers[1].State = controller.PeerRefused
			s.Peers[2].VTEP = netip.MustParseAddr("172.16.9.9")
			s.Peers[3].State = controller.PeerFailed
			s.Peers = append(s.Peers, fifth, s.Peers[0], controller.PeerStatus{Subnet: netip.MustParsePrefix("10.9.0.0/24"), State: controller.PeerUnknown})
		})
		time.Sleep(4 * time.Second)
		all := w.prober.Status().Peers
		if len(all) != 3 || all[0].Since != first.Since || all[0].State != status.ProbeOK || all[2].Subnet != fifth.Subnet || all[2].State != status.ProbeOK {
			t.Errorf("%+v", all)
		}
		if all[1].Subnet != w.status.Load().Peers[2].Subnet || !all[1].Since.After(first.Since) {
			t.Errorf("moved: %+v", all[1])
		}
		for i, q := range w.prober.peers {
			if w.prober.queue[q.at].peer != q || w.prober.bySubnet[all[i].Subnet] != q {
				t.Errorf("%s has not its place", all[i].Subnet)
			}
		}
		w.set(func(s *controller.Status) { s.Held = false })
		time.Sleep(2 * time.Second)
		sent := len(w.requests())
		time.Sleep(time.Minute)
		if n := len(w.requests()) - sent; n > 0 || len(w.prober.Status().Peers)+len(w.prober.bySubnet)+len(w.prober.queue) > 0 {
			t.Errorf("%d requests without a lease: %+v", n, w.prober.Status())
		}
	})
}

// TestSilentAfterAMove: a peer that answered, and does not any more after its address or the session of this host changed, is down.
func TestSilentAfterAMove(t *testing.T) {
	for name, move := range map[string]func(w *world){
		"its address": func(w *world) {
			w.set(func(s *controller.Status) { s.Peers[0].VTEP = netip.MustParseAddr("172.16.9.9") })
		},
		"its address, twice": func(w *world) {
			w.set(func(s *controller.Status) { s.Peers[0].VTEP = netip.MustParseAddr("172.16.9.9") })
			time.Sleep(2 * time.Second)
			w.set(func(s *controller.Status) { s.Peers[0].VTEP = netip.MustParseAddr("172.16.9.8") })
		},
		"this host's lease": func(w *world) {
			w.set(func(s *controller.Status) { s.Held = false })
			time.Sleep(2 * time.Second)
			w.set(func(s *controller.Status) { s.Held = true })
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 2, func(w *world) {
				w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
				w.host(0, func(h *fakeHost) { h.noOverlay, h.noUnder = true, true })
				move(w)
				down := func() bool {
					p := w.prober.Status().Peers
					return len(p) > 0 && p[0].State == status.ProbeDown && p[0].Reason == status.ReasonNoAnswer
				}
				w.await("down", 15*time.Second, down)
				if heard := w.prober.Heard(); len(heard) != 2 {
					t.Errorf("%v answered", heard)
				}
			})
		})
	}
	var heard map[netip.Prefix]bool
	run(t, 2, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		heard = w.prober.Heard()
	})
	run(t, 2, func(w *world) {
		for i := range 2 {
			w.host(i, func(h *fakeHost) { h.noOverlay, h.noUnder = true, true })
		}
		if n := len(w.prober.Heard()); n != 2 {
			t.Errorf("%d known to have answered before there are peers", n)
		}
		w.await("down in the next session", 15*time.Second, w.is(status.ProbeDown, status.ReasonNoAnswer))
	}, func(w *world) { w.prober.cfg.Heard = heard })
}

// TestGoneWhileAway: an answer to a peer that has gone meanwhile, and its absence, touch nobody.
func TestGoneWhileAway(t *testing.T) {
	run(t, 3, func(w *world) {
		for i := range 3 {
			w.host(i, func(h *fakeHost) { h.rtt = 1500 * time.Millisecond })
		}
		time.Sleep(1500 * time.Millisecond)
		w.set(func(s *controller.Status) { s.Peers = s.Peers[:1] })
		time.Sleep(time.Minute)
		if s := w.prober.Status(); len(s.Peers) != 1 || s.Counts.Forged > 0 || s.Counts.Changes > 3 {
			t.Errorf("%+v", s)
		}
	})
}

// TestAddresses: requests have the own addresses of this host, of the right family, and of each kind the right size.
func TestAddresses(t *testing.T) {
	run(t, 2, func(w *world) {
		w.host(0, func(h *fakeHost) { h.noOverlay = true })
		time.Sleep(20 * time.Second)
		seen := map[string]bool{}
		for _, r := range w.requests() {
			h := w.hosts[r.to]
			want, what := map[bool]string{true: "10.0.0.0", false: "fd00::"}[r.to.Is4()], "overlay"
			if r.to == h.vtep {
				want, what = map[bool]string{true: "192.0.2.2", false: "2001:db8::2"}[r.to.Is4()], "underlay"
			}
			if r.from.String() != want {
				t.Errorf("%s is asked from %s", r.to, r.from)
			}
			if r.size != smallSize(r.to) && r.size != 1450 {
				t.Errorf("%d bytes to %s", r.size, r.to)
			}
			if (r.ttl == 1) != (r.to == behind(h.subnet)) {
				t.Errorf("TTL %d to %s", r.ttl, r.to)
			}
			seen[what+map[bool]string{true: "4", false: "6"}[r.to.Is4()]] = true
		}
		if len(seen) != 4 {
			t.Errorf("asked only %v", seen)
		}
	})
}

// TestWithoutTunnel: no host has the base address of a subnet with host-gw, so its underlay address is asked, and the hop all the same.
func TestWithoutTunnel(t *testing.T) {
	run(t, 1, func(w *world) {
		w.await("ok", 5*time.Second, w.is(status.ProbeOK, ""))
		time.Sleep(time.Minute)
		for _, r := range w.requests() {
			if h := w.hosts[r.to]; r.to == h.subnet.Addr() || r.from.String() != "192.0.2.2" {
				t.Errorf("%s is asked from %s", r.to, r.from)
			}
		}
		if p := w.probe(0); p.Forwards != status.ForwardsYes || p.MTU != status.MTUOK {
			t.Errorf("%+v", p)
		}
		w.host(0, func(h *fakeHost) { h.noOverlay, h.noUnder = true, true })
		w.await("down", 15*time.Second, w.is(status.ProbeDown, status.ReasonHostDown))
	}, func(w *world) { w.prober.cfg.Tunnel = false })
}

// TestBehind: an address that is neither base, first nor broadcast, in any subnet that has one.
func TestBehind(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.1.2.0/24": "10.1.2.254", "10.1.0.0/16": "10.1.255.254", "10.0.0.0/8": "10.0.255.254", "10.1.2.4/30": "10.1.2.6", "10.1.2.4/31": "invalid IP",
		"10.1.2.4/32": "invalid IP", "fd00::/64": "fd00::fffe", "fd00::/112": "fd00::fffe", "fd00::8/126": "fd00::a", "fd00::8/127": "invalid IP", "fd00::/128": "invalid IP",
	} {
		if got := behind(netip.MustParsePrefix(subnet)).String(); got != want {
			t.Errorf("%s: %s, want %s", subnet, got, want)
		}
	}
}

// TestAddPlaces: more peers get more places, and what is on its way stays known, also where the sequence numbers start again.
func TestAddPlaces(t *testing.T) {
	for _, test := range []struct{ peers, places int }{{0, 64}, {8, 64}, {9, 128}, {128, 1024}, {100_000, 1024}} {
		for _, first := range []uint16{0, 1<<16 - 40} {
			p := New(Config{})
			if f := p.flight(first); f.peer != nil {
				t.Errorf("flight %d of none is %+v", first, f)
			}
			for i := range uint16(70) {
				*p.flight(first + i) = flight{peer: &peer{}, seq: first + i}
			}
			p.addPlaces(test.peers)
			for i := uint16(6); i < 70; i++ { // six had lost their places
				if f := p.flight(first + i); f.peer == nil || f.seq != first+i {
					t.Errorf("%d peers: flight %d is %+v", test.peers, first+i, f)
				}
			}
			if p.addPlaces(1); len(p.flights) != test.places {
				t.Errorf("%d peers: %d places, want %d", test.peers, len(p.flights), test.places)
			}
		}
	}
}
