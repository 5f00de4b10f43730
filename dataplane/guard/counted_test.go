package guard

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// congested marks the outer header of a datagram as of a packet that has met congestion.
func congested(b []byte) []byte {
	if b[0]>>4 == 6 {
		b[1] |= 0x30
		return b
	}
	b[1] |= 3
	binary.BigEndian.PutUint16(b[10:], 0)
	binary.BigEndian.PutUint16(b[10:], ^onesSum(b[:20], 0))
	return b
}

// TestCountedByTheDevice: what the kernel drops of a VTEP's datagrams between the rules for the outer packet and those for the inner one is counted under its reason.
func TestCountedByTheDevice(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b := w.hosts[0], w.hosts[1]
		stats := func() (s dataplane.Stats) {
			a.Must(func() error { s = a.dp.Stats(); return nil })
			return s
		}
		b.Must(func() error { _, err := Cleanup(1); return err }) // b's processes may send as it does
		for _, inner6 := range []bool{false, true} {
			frame := func(text string) []byte {
				return a.frame(1, packet(b.podAddr(inner6), a.podAddr(inner6), 1, receivePort, []byte(text)))
			}
			toMAC := func(mac ...byte) func(text string) []byte {
				return func(text string) []byte { d := frame(text); copy(d[8:], mac); return d }
			}
			whole := func(frame func(string) []byte) func(string) error {
				return func(text string) error {
					sendRaw(w.stranger, packet(b.addr, a.addr, 30000, testPort, frame(text)))
					return nil
				}
			}
			for name, c := range map[string]struct {
				why  dataplane.Drop
				send func(text string) error
			}{
				"the MAC of another": {dataplane.DropBadMAC, whole(toMAC(2, 2, 2, 2, 2, 9))},
				"the MAC of another, hidden": {dataplane.DropBadMAC, func(text string) error {
					return sendSegments(b.NS, b.addr, a.addr, frame(text), toMAC(2, 2, 2, 2, 2, 9)(text))
				}},
				"congestion": {dataplane.DropCongestion, func(text string) error {
					sendRaw(w.stranger, congested(packet(b.addr, a.addr, 30000, testPort, frame(text))))
					return nil
				}},
			} {
				t.Run(fmt.Sprintf("%s, inner IPv%d", name, 4+2*family6(inner6)), func(t *testing.T) {
					before := stats()
					if err := c.send(t.Name()); err != nil {
						t.Fatal(err)
					}
					var got dataplane.Stats
					eventually(t, "it is counted", func() bool {
						got = stats()
						for i, n := range before.Drops {
							got.Drops[i] -= n
						}
						got.Drops[dataplane.DropDevice] = 0 // the kernel itself sends into the overlay, to a group
						return got.Drops != Drops{}
					})
					var want Drops
					want[c.why] = 1
					if got.Drops != want {
						t.Errorf("counted %v, want %v", got.Drops, want)
					}
				})
			}
		}
		w.check(100)
	})
}
