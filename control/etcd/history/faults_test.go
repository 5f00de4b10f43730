package history_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// fault does something to a machine, whose daemon runs, and returns what ends it and when; nil: it
// is over already.
type fault struct {
	name string
	do   func(h *history, m *machine) (end func(), after time.Duration)
}

// machineFaults are the faults of one machine.
func machineFaults() []fault {
	return []fault{
		{"pause", (*history).stopped},
		{"stutter", (*history).stutters},
		{"black hole", (*history).blackHole},
		{"cut", func(h *history, m *machine) (func(), time.Duration) {
			h.logf(m.name(), "connection cut")
			m.running().link.cut()
			return nil, 0
		}},
		{"kill", func(h *history, m *machine) (func(), time.Duration) {
			return h.ended(m, m.kill)
		}},
		{"restart", func(h *history, m *machine) (func(), time.Duration) {
			return h.ended(m, m.end)
		}},
		{"new address", func(h *history, m *machine) (func(), time.Duration) {
			return h.ended(m, func() {
				m.end()
				m.former = append(m.former, m.ip)
				m.ip = netip.AddrFrom4([4]byte{192, 0, byte(m.runs), byte(m.machine)})
			})
		}},
		{"drain", func(h *history, m *machine) (func(), time.Duration) {
			return func() { m.drain(); m.start() }, 0
		}},
		{"drain while stopped", func(h *history, m *machine) (func(), time.Duration) {
			lift, after := h.stopped(m)
			go m.running().ctl.Drain(context.Background()) // ends with Run
			return func() { lift(); m.drain(); m.start() }, after
		}},
		{"revoke etcd lease", (*history).revokeLease},
		{"delete entry", (*history).deleteEntry},
		{"spoil entry", (*history).spoilEntry},
		{"operator revokes", (*history).operatorRevokes},
	}
}

// storeFaults are the faults of etcd, which concern all machines.
func storeFaults() []fault {
	return []fault{
		{"wipe", func(h *history, _ *machine) (func(), time.Duration) { h.restore("wipe", nil); return nil, 0 }},
		{"restore", func(h *history, _ *machine) (func(), time.Duration) {
			if len(h.snaps) > 0 {
				h.restore("restore", h.snaps[h.rng.IntN(len(h.snaps))])
			}
			return nil, 0
		}},
	}
}

// drive draws faults for a time, ends them all, and returns when every daemon runs.
func (h *history) drive(ctx context.Context, p plan) {
	all := machineFaults()
	h.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if i := slices.IndexFunc(all, func(f fault) bool { return f.name == p.bug.fault }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	all = all[:2+h.rng.IntN(len(all)-1)] // few kinds in one history meet more often
	if p.clones {
		all = append(cloneFaults(), all[:2]...)
	}
	store, rarely := storeFaults()[h.rng.IntN(2)], 60
	if p.alone {
		store, rarely = etcdFaults()[min(h.rng.IntN(4), 1)], 20
	}
	pace := time.Duration(20+h.rng.IntN(200)) * time.Millisecond
	for h.now() < p.faults {
		time.Sleep(rand.N(2 * pace)) // the faults' rate, not a synchronisation
		switch h.rng.IntN(rarely) {
		case 0:
			store.do(h, nil)
		case 1, 2:
			h.snapshot(ctx)
		default:
			h.strike(all[h.rng.IntN(len(all))], h.machines[h.rng.IntN(len(h.machines))])
		}
	}
	h.logf("etcd", "the faults end")
	h.ends.Wait()
	for _, m := range h.machines {
		m.running().link.cut()
	}
}

// strike does a fault to a machine unless one of it is going on.
func (h *history) strike(f fault, m *machine) {
	if !m.claim() {
		return
	}
	end, after := f.do(h, m)
	if end == nil {
		m.free()
		return
	}
	h.ends.Go(func() error {
		defer m.free()
		time.Sleep(after) // how long the fault lasts
		end()
		return nil
	})
}

// while draws how long a fault lasts: some are short, and some are longer than a lease.
func (h *history) while() time.Duration {
	if h.rng.IntN(2) == 0 {
		return time.Duration(h.rng.Int64N(int64(leaseTTL)))
	}
	return leaseTTL + time.Duration(h.rng.Int64N(int64(leaseTTL)))
}

// gone notes that a machine gives no sign of life for a time, until it next asks etcd.
func (h *history) gone(m *machine, lasts time.Duration) {
	// It gives a sign of life each third of a NodeTTL, and others wait for half of one at least.
	if takenForDead := h.nodeTTL/2 - h.nodeTTL/3; lasts > takenForDead {
		h.noteAt(silent, m.host, h.now()+takenForDead)
	}
}

// ended ends a machine's daemon; it is started again after a time.
func (h *history) ended(m *machine, end func()) (func(), time.Duration) {
	d := h.while()
	h.logf(m.name(), "ends, for %s", d)
	h.gone(m, d)
	end()
	return m.start, d
}

// stopped stops a process as SIGSTOP does.
func (h *history) stopped(m *machine) (func(), time.Duration) {
	p, d := m.running(), h.while()
	h.logf(m.name(), "stopped for %s", d)
	h.gone(m, d)
	p.pause.close()
	p.link.close()
	return func() {
		p.link.open()
		p.pause.open()
		h.logf(m.name(), "goes on")
	}, d
}

// stutters stops a process again and again, for moments.
func (h *history) stutters(m *machine) (func(), time.Duration) {
	p, rng := m.running(), rand.New(rand.NewPCG(h.rng.Uint64(), 0))
	h.logf(m.name(), "stutters")
	h.gone(m, 4*leaseTTL)
	return func() {
		for range 4 {
			p.pause.close()
			p.link.close()
			time.Sleep(time.Duration(rng.Int64N(int64(leaseTTL)))) // the fault
			p.link.open()
			p.pause.open()
			time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Millisecond)))) // between two
		}
		h.logf(m.name(), "goes on")
	}, 0
}

// blackHole holds all that a process sends and receives.
func (h *history) blackHole(m *machine) (func(), time.Duration) {
	p, d := m.running(), h.while()
	h.logf(m.name(), "black hole for %s", d)
	h.gone(m, d)
	p.link.close()
	return func() {
		p.link.open()
		h.logf(m.name(), "end of the black hole")
	}, d
}
