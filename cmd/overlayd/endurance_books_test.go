package main

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// flow is one of the ways in which datagrams go from one member to another, 100 a second.
type flow struct {
	*meter
	name     string
	from, to *member
}

// flows are all of them.
type flows []*flow

// startFlows starts a flow each way between two members, by one family.
func (fs *flows) start(t *testing.T, a, b *member, family int) {
	t.Helper()
	for _, way := range [][2]*member{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		addr := to.pod.addrs[family]
		reach(t, from.pod, addr)
		m, err := startMeter(from.pod.NS, to.pod.NS, addr, pace100)
		if err != nil {
			t.Fatal(err)
		}
		*fs = append(*fs, &flow{m, fmt.Sprintf("%s → %s at %s", from.name, to.name, addr), from, to})
	}
}

// reach waits until a pod reaches an address. A host that does not know the pod yet drops datagrams of forgedSize.
func reach(t *testing.T, from *pod, addr netip.Addr) {
	t.Helper()
	size := sentByATest
	if addr.Is6() {
		size -= ipv6.HeaderLen - ipv4.HeaderLen
	}
	eventually(t, patience, "pods reach each other", func() error { return echoWithin(from.NS, addr, size, 100*time.Millisecond) })
}

// marks are how much each flow had sent at some time.
type marks []uint64

func (fs flows) marks() (all marks) {
	for _, f := range fs {
		all = append(all, f.sent.Load())
	}
	return all
}

// A packet that has not arrived after inFlight is lost, and so is one after which later packets, or more, have arrived.
const (
	inFlight = 2 * time.Second
	later    = 10
)

// settle returns when everything sent between two marks has arrived, or is lost.
func (fs flows) settle(from, to marks) {
	for began := time.Now(); time.Since(began) < inFlight; time.Sleep(5 * time.Millisecond) {
		since, open := fs.marks(), false
		for i, n := range fs.missing(to, since) {
			open = open || fs[i].arrived.missing(from[i], to[i]) > 0 && since[i]-to[i]-n < later
		}
		if !open {
			return
		}
	}
}

func (fs flows) missing(from, to marks) (all []uint64) {
	for i, f := range fs {
		all = append(all, f.arrived.missing(from[i], to[i]))
	}
	return all
}

// waitGoing waits until each flow has something arrive that was sent after from, and returns the marks of then.
func (fs flows) waitGoing(t *testing.T, from marks) marks {
	t.Helper()
	eventually(t, patience, "all flows go on", func() error {
		var stuck []string
		for i, f := range fs {
			if sent := f.sent.Load(); f.arrived.missing(from[i], sent) == sent-from[i] {
				stuck = append(stuck, f.name)
			}
		}
		if stuck != nil {
			return fmt.Errorf("nothing arrives of %s", strings.Join(stuck, ", "))
		}
		return nil
	})
	return fs.marks()
}

// limit is how many datagrams of a flow may be lost in some time.
type limit func(f *flow) uint64

// none may be lost.
func none(*flow) uint64 { return 0 }

// upTo lets each flow of a member lose n, and the others nothing.
func upTo(n uint64, m *member) limit {
	return func(f *flow) uint64 {
		if f.from == m || f.to == m {
			return n
		}
		return 0
	}
}

// ledger has what was lost, by when.
type ledger struct {
	flows
	lost map[string]uint64 // by the name of what happened
}

// enter waits for what was sent between two marks, and returns a line for each flow that has lost more than it may.
func (l *ledger) enter(when string, from, to marks, may limit) (wrong []string) {
	l.settle(from, to)
	for i, n := range l.missing(from, to) {
		l.lost[when] += n
		if f := l.flows[i]; n > may(f) {
			wrong = append(wrong, fmt.Sprintf("%s: %d of %d datagrams lost of %s, may be %d", when, n, to[i]-from[i], f.name, may(f)))
		}
	}
	return wrong
}

// end ends all flows, and waits for what is on its way.
func (fs flows) end() {
	var ended sync.WaitGroup
	for _, f := range fs {
		ended.Go(func() { f.finish() })
	}
	ended.Wait()
}

// totals returns how much was sent, lost, and received twice.
func (fs flows) totals() (sent, lost, doubled uint64) {
	for _, f := range fs {
		sent += f.sent.Load()
		lost += f.arrived.missing(0, f.sent.Load())
		doubled += f.arrived.doubled
	}
	return sent, lost, doubled
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	var a arrivals
	for _, n := range []uint64{1, 2, 64, 63, 130, 2} {
		a.add(n)
	}
	for _, c := range []struct{ after, last, want uint64 }{{0, 0, 0}, {0, 2, 0}, {0, 3, 1}, {2, 63, 60}, {62, 64, 0}, {64, 130, 65}, {130, 1000, 870}} {
		if got := a.missing(c.after, c.last); got != c.want {
			t.Errorf("(%d, %d]: %d missing, want %d", c.after, c.last, got, c.want)
		}
	}
	if a.doubled != 1 {
		t.Errorf("%d doubled, want 1", a.doubled)
	}
}
