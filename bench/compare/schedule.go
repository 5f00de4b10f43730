package main

import "time"

// What a run is expected to cost beside the traffic.
const (
	setupTime = 5 * time.Second        // of all candidates of one underlay
	slotCost  = 550 * time.Millisecond // per row and round: connecting, draining, asking the processes
)

// ledger is what remains to be done, and what was spent beside the traffic so
// far: a run on a busy machine measures for less time in its later rounds.
type ledger struct {
	slots  int // rows × rounds, of all underlays
	setups int // underlays
	done   int // slots
	spent  time.Duration
}

// cost is what one slot costs beside its traffic.
func (l ledger) cost() time.Duration {
	if l.done == 0 {
		return slotCost
	}
	return max(slotCost, l.spent/time.Duration(l.done))
}

// count notes slots that are done, with the time that they took.
func (l *ledger) count(slots int, took time.Duration, s schedule) {
	l.slots -= slots
	l.done += slots
	l.spent += took - time.Duration(slots)*s.total()
}

// Limits of the traffic of one row in one round: below the first one the figures
// are noise, above the second one more rounds say more.
const (
	minSlot = 1200 * time.Millisecond
	maxSlot = 5 * time.Second
)

// schedule is how long each kind of traffic lasts in one row of one round.
type schedule struct {
	tcp1, tcp8, udp, flood, idle, load time.Duration
}

// newSchedule divides what is left of a budget among the slots that remain. fits
// is false if that is too little: the run will take longer.
func newSchedule(budget time.Duration, l ledger) (s schedule, fits bool) {
	slot := (budget-time.Duration(l.setups)*setupTime)/time.Duration(max(l.slots, 1)) - l.cost()
	fits = slot >= minSlot
	slot = min(max(slot, minSlot), maxSlot)
	part := func(percent int) time.Duration {
		return (slot * time.Duration(percent) / 100).Truncate(time.Millisecond)
	}
	return schedule{tcp1: part(24), tcp8: part(15), udp: part(10), flood: part(8), idle: part(10), load: part(14)}, fits
}

// More traffic surrounds what is measured: a UDP sender goes on for udpTail after
// the receiver stopped counting, and the stream beside a ping for loadMargin
// before and after.
func (s schedule) udpTail() time.Duration    { return s.udp / 4 }
func (s schedule) loadMargin() time.Duration { return s.load / 8 }

// total is the traffic of one row in one round; UDP is sent in two sizes.
func (s schedule) total() time.Duration {
	return s.tcp1 + s.tcp8 + 2*(s.udp+s.udpTail()) + s.flood + s.idle + s.load + 2*s.loadMargin()
}
