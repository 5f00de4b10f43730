package history_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/overlayd/overlayd/control"
)

// recorder notes what happens in one history. Times are since its begin.
type recorder struct {
	begin time.Time

	mu    sync.Mutex
	takes []taking
	ops   []operation
	lines []line // what else is worth reading if something is wrong
}

// taking is an answer of the store that gives a host a subnet or renews it.
type taking struct {
	by        host
	subnet    netip.Prefix
	call, ret time.Duration
	expires   time.Duration // as the host knows it; 0: never
}

// operation is any other operation on a subnet; without one it concerns all.
type operation struct {
	input
	subnet    netip.Prefix
	call, ret time.Duration
}

// line is a line of a report. What stands in it is formatted when it is read.
type line struct {
	at   time.Duration
	who  string // a machine or etcd
	text fmt.Stringer
}

type text string

// String implements fmt.Stringer.
func (t text) String() string { return string(t) }

func (r *recorder) now() time.Duration { return time.Since(r.begin) }

func (r *recorder) logf(who string, format string, args ...any) {
	r.add(who, text(fmt.Sprintf(format, args...)))
}

func (r *recorder) add(who string, what fmt.Stringer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line{r.now(), who, what})
}

// subnetsOf returns the subnets of a lease, each of which is owned for itself.
func subnetsOf(l control.Lease) []netip.Prefix {
	return slices.DeleteFunc([]netip.Prefix{l.Subnet, l.IPv6Subnet}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// took notes an answer of the store to a request that was sent at call.
func (r *recorder) took(by host, l control.Lease, call time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := taking{by: by, call: call, ret: r.now()}
	if !l.Expires.IsZero() {
		t.expires = l.Expires.Sub(r.begin)
	}
	for _, t.subnet = range subnetsOf(l) {
		r.takes = append(r.takes, t)
	}
}

// note notes another operation on each of the subnets, or without any on all that there are.
func (r *recorder) note(k kind, by host, call time.Duration, subnets ...netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := operation{input: input{k, by}, call: call, ret: r.now()}
	if len(subnets) == 0 {
		subnets = []netip.Prefix{{}}
	}
	for _, o.subnet = range subnets {
		r.ops = append(r.ops, o)
	}
}

// noteAt notes an operation on all subnets at one time, which may be yet to come.
func (r *recorder) noteAt(k kind, by host, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, operation{input: input{k, by}, call: at, ret: at})
}

// operations returns the operations of each subnet.
func (r *recorder) operations() map[netip.Prefix][]porcupine.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	bySubnet := map[netip.Prefix][]porcupine.Operation{}
	add := func(p netip.Prefix, in input, call, ret time.Duration) {
		bySubnet[p] = append(bySubnet[p], porcupine.Operation{ClientId: in.by.machine, Input: in, Call: int64(call), Return: int64(ret)})
	}
	slices.SortStableFunc(r.takes, func(a, b taking) int { return cmp.Compare(a.ret, b.ret) })
	for i, t := range r.takes {
		add(t.subnet, input{take, t.by}, t.call, t.ret)
		if end, ends := r.lapse(i); ends { // on a busy machine before the answer: etcd has kept the entry for longer
			add(t.subnet, input{drop, t.by}, end, max(end, t.ret))
		}
	}
	for _, o := range r.ops {
		for p, ops := range bySubnet {
			if o.kind != void && !slices.ContainsFunc(ops, func(had porcupine.Operation) bool { return had.ClientId == o.by.machine }) {
				continue // it never had the subnet
			}
			if !o.subnet.IsValid() || o.subnet == p {
				add(p, o.input, o.call, o.ret)
			}
		}
	}
	return bySubnet
}

// lapse returns when the right that take i gave has ended, unless the host had renewed it by then.
func (r *recorder) lapse(i int) (end time.Duration, ends bool) {
	t := r.takes[i]
	for _, next := range r.takes[i+1:] {
		if next.subnet == t.subnet && next.by.machine == t.by.machine {
			return t.expires, t.expires != 0 && t.expires < next.ret
		}
	}
	return t.expires, t.expires != 0
}

// checkTime bounds what porcupine may take for one subnet.
const checkTime = 30 * time.Second

// check returns what is wrong with the history: a subnet of which two hosts were owners at once.
func (r *recorder) check() (wrong []string) {
	for p, ops := range r.operations() {
		if got := porcupine.CheckOperationsTimeout(model, ops, checkTime); got != porcupine.Ok {
			wrong = append(wrong, fmt.Sprintf("%s: two owners (porcupine: %s)\n%s", p, got, r.report(p, ops)))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// report lists the operations of a subnet and what else happened to those who had it.
func (r *recorder) report(p netip.Prefix, ops []porcupine.Operation) string {
	var lines []line
	names := map[string]bool{"etcd": true}
	for _, o := range ops {
		in := o.Input.(input)
		what := [...]string{take: "TAKE", drop: "DROP", void: "VOID", silent: "SILENT"}[in.kind]
		who := "etcd"
		if in.kind != void {
			who = in.by.name()
			names[who] = true
			what += " " + in.by.String()
		}
		lines = append(lines, line{time.Duration(o.Call), who, text(fmt.Sprintf("%s (until %.3fs)", what, time.Duration(o.Return).Seconds()))})
	}
	return r.list(names, lines...)
}

// list lists what happened to some machines, and more lines.
func (r *recorder) list(names map[string]bool, lines ...line) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if names[l.who] {
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var text strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&text, "%9.3fs %s %s\n", l.at.Seconds(), l.who, l.text)
	}
	return text.String()
}

// TestLapsedWhenAnswered: a lease that has ended by its node's own clock when the store gives it is not a second owner, and leaves none.
func TestLapsedWhenAnswered(t *testing.T) {
	p := netip.MustParsePrefix("10.5.1.0/24")
	r := &recorder{takes: []taking{{host{machine: 1}, p, 0, 1, 5}, {host{machine: 2}, p, 2, 8, 4}, {host{machine: 3}, p, 9, 10, 0}}}
	if !porcupine.CheckOperations(model, r.operations()[p]) {
		t.Error("found wrong")
	}
	r.takes[1].expires = 20
	if porcupine.CheckOperations(model, r.operations()[p]) {
		t.Error("two owners found right")
	}
}
