package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// forgery is one kind of forged packet.
type forgery struct {
	name  string
	from  *netnstest.NS
	build func(text []byte) []byte
}

// open returns a function that sends one packet of a text. The sender's own guard may refuse it.
func (f forgery) open(w *world) (send func(text string)) {
	v6 := f.build(nil)[0]>>4 == 6
	var fd int
	f.from.Must(func() (err error) {
		fd, err = unix.Socket([]int{unix.AF_INET, unix.AF_INET6}[family6(v6)], unix.SOCK_RAW, unix.IPPROTO_RAW)
		return err
	})
	w.t.Cleanup(func() { unix.Close(fd) })
	return func(text string) {
		b := f.build([]byte(text))
		if v6 {
			_ = unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: [16]byte(b[24:40])})
		} else {
			_ = unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: [4]byte(b[16:20])})
		}
	}
}

// keepForging sends a packet of each kind every half a millisecond until stop is called.
func (w *world) keepForging(all []forgery) (stop func()) {
	var sends []func(text string)
	for _, f := range all {
		sends = append(sends, f.open(w))
	}
	quit := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(500 * time.Microsecond)
		defer tick.Stop()
		for {
			for i, f := range all {
				sends[i]("forged: " + f.name)
			}
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	})
	stop = sync.OnceFunc(func() { close(quit); sender.Wait() })
	w.t.Cleanup(stop)
	return stop
}

// TestForgedWhileRulesAreWritten sends a flood of forged packets. Meanwhile the guard changes some rules, writes all of them anew, and peers come and
// go. No forged packet arrives.
func TestForgedWhileRulesAreWritten(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		w.join()
		a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
		podA, podB, podC := a.podAddr(w.v6), b.podAddr(w.v6), c.podAddr(w.v6)
		w.stranger.Run("ip", "route", "replace", testNetworks[family6(w.v6)].String(), "via", a.addr.String())
		plain := func(src, dst netip.Addr) func(text []byte) []byte {
			return func(text []byte) []byte { return packet(src, dst, 1, receivePort, text) }
		}
		vxlan := func(outer netip.Addr, to *host, src, dst netip.Addr) func(text []byte) []byte {
			return func(text []byte) []byte {
				return packet(outer, to.addr, 1, testPort, to.frame(1, plain(src, dst)(text)))
			}
		}
		stop := w.keepForging([]forgery{
			{"stranger", w.stranger, vxlan(w.strange, a, podB, podA)},
			{"VTEP, source of another one's pod", w.stranger, vxlan(b.addr, a, podC, podA)},
			{"VTEP, to the underlay", w.stranger, vxlan(b.addr, a, podB, a.addr)},
			{"pod, as a VTEP", a.pod, vxlan(b.addr, a, podB, podA)},
			{"pod, to a VTEP", a.pod, vxlan(podA, b, podA, podB)},
			{"pod, source of another host's pod", a.pod, plain(podC, podB)},
			{"plain", w.stranger, plain(podB, podA)},
		})
		whole := w.lastWanted(a)
		fewer, more := whole, whole
		fewer.Peers = whole.Peers[:1]
		for i := range 50 {
			a.Must(func() error {
				a.guard.mu.Lock()
				defer a.guard.mu.Unlock()
				a.guard.there = false
				return a.guard.ensure(a.guard.wanted)
			})
			more.Peers = append(slices.Clone(whole.Peers), dataplane.Peer{VTEP: dataplane.VTEP{Addr: w.strange.Next(), MAC: dataplane.MAC(w.strange.Next(), 1), VNI: 1},
				Subnets: prefixes(fmt.Sprintf("10.42.%d.0/%d", 100+i, 24+i%7))})
			a.guard.sync(t, a.NS, more)
			a.guard.sync(t, a.NS, fewer)
		}
		a.guard.sync(t, a.NS, whole)
		before := w.total(a)
		eventually(t, "more is dropped afterwards", func() bool { return w.total(a) > before+500 })
		stop()
		w.check(100)
		w.arrived.Range(func(text, place any) bool {
			if strings.HasPrefix(text.(string), "forged") {
				t.Errorf("%s arrived at %s", text, place)
			}
			return true
		})
	})
}
