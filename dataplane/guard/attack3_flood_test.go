package guard

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestAttack3FloodWhileRulesAreWritten: nothing forged arrives while the guard writes its rules, in part or anew, and while peers come and go.
func TestAttack3FloodWhileRulesAreWritten(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		var stop atomic.Bool
		var wg sync.WaitGroup
		var sent atomic.Uint64
		flood := func(name string, ns *netnstest.NS, build func(text []byte) []byte) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				ns.Do(func() error {
					family := unix.AF_INET
					first := build([]byte("x"))
					if first[0]>>4 == 6 {
						family = unix.AF_INET6
					}
					fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					for i := 0; !stop.Load(); i++ {
						p := build(fmt.Appendf(nil, "%s %d", name, i))
						if family == unix.AF_INET {
							unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: [4]byte(p[16:20])})
						} else {
							unix.Sendto(fd, p, 0, &unix.SockaddrInet6{Addr: [16]byte(p[24:40])})
						}
						sent.Add(1)
						time.Sleep(200 * time.Microsecond)
					}
					return nil
				})
			}()
		}
		vx := func(outer, src, dst netip.Addr) func(text []byte) []byte {
			return func(text []byte) []byte {
				return packet(outer, a.addr, 1, testPort, a.frame(1, packet(src, dst, 1, receivePort, text)))
			}
		}
		flood("stranger", w.stranger, vx(w.strange, b.podAddr(w.v6), a.podAddr(w.v6)))
		flood("vtep as another", w.stranger, vx(b.addr, c.podAddr(w.v6), a.podAddr(w.v6)))
		flood("vtep to host", w.stranger, vx(b.addr, b.podAddr(w.v6), a.addr))
		flood("pod as VTEP", a.pod, vx(b.addr, b.podAddr(w.v6), a.podAddr(w.v6)))
		flood("pod to VTEP", a.pod, func(text []byte) []byte {
			return packet(a.podAddr(w.v6), b.addr, 1, testPort, b.frame(1, packet(a.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text)))
		})
		flood("pod as another", a.pod, func(text []byte) []byte { return packet(c.podAddr(w.v6), b.podAddr(w.v6), 1, receivePort, text) })
		w.stranger.Run("ip", "route", "replace", testNetworks[family6(w.v6)].String(), "via", a.addr.String())
		flood("plain", w.stranger, func(text []byte) []byte { return packet(b.podAddr(w.v6), a.podAddr(w.v6), 1, receivePort, text) })
		time.Sleep(200 * time.Millisecond)
		before := w.total(a)
		all := w.lastWanted(a)
		for i := range 150 {
			switch i % 3 {
			case 0:
				a.Must(func() error {
					a.guard.mu.Lock()
					defer a.guard.mu.Unlock()
					a.guard.there = false
					return a.guard.ensure(a.guard.wanted)
				})
			case 1:
				v := all
				v.Peers = append(append([]dataplane.Peer{}, all.Peers...), dataplane.Peer{VTEP: dataplane.VTEP{Addr: w.strange.Next(), MAC: dataplane.MAC(w.strange.Next(), 1), VNI: 1},
					Subnets: prefixes(fmt.Sprintf("10.42.%d.0/%d", 100+i%50, 24+i%7))})
				a.guard.sync(t, a.NS, v)
			case 2:
				v := all
				v.Peers = all.Peers[:1]
				a.guard.sync(t, a.NS, v)
			}
		}
		a.guard.sync(t, a.NS, all)
		stop.Store(true)
		wg.Wait()
		w.arrived.Range(func(k, v any) bool { t.Errorf("%v arrived at %v", k, v); return true })
		t.Logf("%d sent, %d dropped by a", sent.Load(), w.total(a)-before)
		w.check(100)
	})
}
