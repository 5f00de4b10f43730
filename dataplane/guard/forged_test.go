package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// forged is one kind of inner packet, as told to a target by VXLAN.
type forged struct {
	name     string
	src, dst netip.Addr
	why      dataplane.Drop // from a VTEP

	ofVTEP, outside bool // src is another VTEP's, or outside of the overlay
}

// kinds are the forged packets to host a, from b, whose subnets they do not have as a source, or not a's as a destination.
func (w *world) kinds() (all []forged) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	addr := netip.MustParseAddr
	for i, v6 := range []bool{false, true} {
		own, peer := a.podAddr(v6), b.podAddr(v6)
		other, mapped := addr("8.8.8.8"), addr("0.0.0.0")
		loop, multi, broad, unassigned := addr("127.0.0.1"), addr("224.0.0.1"), addr("255.255.255.255"), addr("10.42.200.1")
		if v6 {
			other, mapped = addr("2001:4860::8"), addr("::ffff:10.42.2.2")
			loop, multi, broad, unassigned = addr("::1"), addr("ff02::1"), addr("fe80::1"), addr("fd42:0:0:99::1")
		}
		n := fmt.Sprintf("inner%d", 4+2*i)
		all = append(all,
			forged{name: n + " source of no peer", src: other, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source of another peer", src: c.podAddr(v6), dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source that nobody has", src: unassigned, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source of the target's pod", src: own, dst: a.overlay(v6), why: dataplane.DropBadSource},
			forged{name: n + " source mapped or none", src: mapped, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source loopback", src: loop, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source multicast", src: multi, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " source broadcast or link", src: broad, dst: own, why: dataplane.DropBadSource},
			forged{name: n + " to another pod by the target", src: peer, dst: c.podAddr(v6), why: dataplane.DropBadDestination},
			forged{name: n + " back to the sender", src: peer, dst: b.overlay(v6), why: dataplane.DropBadDestination},
			forged{name: n + " to loopback", src: peer, dst: loop, why: dataplane.DropBadDestination},
			forged{name: n + " to multicast", src: peer, dst: multi, why: dataplane.DropBadDestination},
			forged{name: n + " to broadcast or link", src: peer, dst: broad, why: dataplane.DropBadDestination},
			forged{name: n + " to somewhere else", src: peer, dst: other, why: dataplane.DropBadDestination},
		)
		if v6 == w.v6 {
			all = append(all,
				forged{name: n + " to the underlay", src: peer, dst: a.addr, why: dataplane.DropBadDestination},
				forged{name: n + " source address of another VTEP", src: c.addr, dst: own, why: dataplane.DropBadSource})
		}
	}
	return all
}

// expect sends, and wants one packet dropped by h for that reason, and nothing of that text to arrive anywhere.
func (w *world) expect(name string, h *host, why dataplane.Drop, send func(text []byte)) {
	w.t.Helper()
	h.dropped()
	send([]byte(name))
	var d Drops
	eventually(w.t, name+" is dropped", func() bool {
		for i, n := range h.dropped() {
			d[i] += n
		}
		if why != dataplane.DropBadVNI {
			d[dataplane.DropBadVNI] = 0 // of a superpacket whose first datagram is of another network that is counted, too
		}
		return d != Drops{} || w.place(name) != ""
	})
	if where := w.place(name); where != "" {
		w.t.Errorf("%s: arrived at %s", name, where)
	}
	for i, n := range d {
		if want := dataplane.Drop(i) == why; want != (n == 1) {
			w.t.Errorf("%s: %d dropped as %s, want one as %s", name, n, dataplane.Drop(i), why)
		}
	}
}

// ways are how a datagram goes over the wire.
var ways = map[string]func(b []byte) [][]byte{
	"whole":      func(b []byte) [][]byte { return [][]byte{b} },
	"8+rest":     func(b []byte) [][]byte { return fragments(b, 8) },
	"48+rest":    func(b []byte) [][]byte { return fragments(b, 48) },
	"72+rest":    func(b []byte) [][]byte { return fragments(b, 72) },
	"72 second":  func(b []byte) [][]byte { f := fragments(b, 72); return [][]byte{f[1], f[0]} },
	"one piece":  func(b []byte) [][]byte { return fragments(b, 0) }, // of IPv6 (RFC 6946)
	"rest first": func(b []byte) [][]byte { f := fragments(b, 16); return [][]byte{f[1], f[0]} },
	"unusual":    func(b []byte) [][]byte { return [][]byte{unusual(b)} },
}

// firstPiece is how many bytes of a datagram the first fragment has, for the ways that cut it.
var firstPiece = map[string]int{"8+rest": 8, "48+rest": 48, "rest first": 16, "72+rest": 72, "72 second": 72}

// TestForged: what strangers and VTEPs forge is dropped and counted under its reason, over either underlay, whole and in
// fragments; what is left is a VTEP's address with one of its own pods'. If nothing else on the host puts fragments of IPv4 together, it is
// dropped as a fragment if the first one is too short to judge.
func TestForged(t *testing.T) {
	for name, under := range map[string]struct{ v6, tracked bool }{"over IPv4": {}, "over IPv4, tracked": {tracked: true}, "over IPv6": {v6: true, tracked: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v6 := under.v6
			w := newWorld(t, v6)
			w.join()
			a, b := w.hosts[0], w.hosts[1]
			if under.tracked {
				a.Run("nft", "add table inet tracks; add chain inet tracks in { type filter hook input priority 0; }; add rule inet tracks in ct state new")
			}
			for way, cut := range ways {
				if way == "one piece" && !v6 {
					continue
				}
				// tooShort reports whether the first fragment ends before byte n of the datagram.
				tooShort := func(n int) bool { return !under.tracked && firstPiece[way] > 0 && firstPiece[way] < n }
				end := map[bool]int{false: atInner + 20, true: atInner + 40} // of the inner header
				send := func(from *netnstest.NS, outer netip.Addr, vni uint32, inner []byte) {
					for _, f := range cut(packet(outer, a.addr, 30000, testPort, a.frame(vni, inner))) {
						sendRaw(from, f)
					}
				}
				for _, k := range w.kinds() {
					w.expect(way+" from a stranger: "+k.name, a, dataplane.DropUnknownVTEP, func(text []byte) {
						send(w.stranger, w.strange, 1, packet(k.src, k.dst, 1, receivePort, text))
					})
					why := k.why
					if tooShort(end[k.src.Is6()]) {
						why = dataplane.DropFragment
					}
					w.expect(way+" from a VTEP: "+k.name, a, why, func(text []byte) {
						send(w.stranger, b.addr, 1, packet(k.src, k.dst, 1, receivePort, text))
					})
				}
				for _, inner6 := range []bool{false, true} {
					for name, src := range map[string]netip.Addr{"pod": b.podAddr(inner6), "host": b.addr} {
						if name == "host" && inner6 != v6 {
							continue
						}
						text := fmt.Sprint(way, name, inner6)
						residual := func(text []byte) { send(w.stranger, b.addr, 1, packet(src, a.podAddr(inner6), 1, receivePort, text)) }
						if tooShort(end[inner6]) {
							w.expect(text, a, dataplane.DropFragment, residual)
							continue
						}
						residual([]byte(text))
						eventually(t, "the documented residual arrives: "+text, func() bool { return w.place(text) != "" })
					}
				}
				arp := dataplane.DropBadHeader
				if tooShort(atInner) {
					arp = dataplane.DropFragment
				}
				w.expect(way+" ARP", a, arp, func([]byte) {
					for _, f := range cut(packet(b.addr, a.addr, 30000, testPort, a.frameOf(1, 0x0806, make([]byte, 46)))) {
						sendRaw(w.stranger, f)
					}
				})
			}
			for name, change := range map[string]struct{ at, to byte }{"no VNI flag": {0, 0}, "a flag besides": {0, 0x88}, "a bit of the flags' word": {3, 1}, "a bit behind the VNI": {7, 1}} {
				w.expect(name, a, dataplane.DropBadVNI, func(text []byte) {
					d := a.frame(1, packet(b.podAddr(v6), a.podAddr(v6), 1, receivePort, text))
					d[change.at] = change.to
					sendRaw(w.stranger, packet(b.addr, a.addr, 30000, testPort, d))
				})
			}
			for name, short := range map[string][]byte{"no header": nil, "half a VXLAN header": {8, 0, 0}, "no inner header": a.frameOf(1, 0x800, nil),
				"half an inner header": a.frameOf(1, 0x800, make([]byte, 19))} {
				w.expect(name, a, dataplane.DropBadHeader, func([]byte) { sendRaw(w.stranger, packet(b.addr, a.addr, 30000, testPort, short)) })
			}
		})
	}
}
