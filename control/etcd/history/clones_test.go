package history_test

import (
	"net/netip"
	"slices"
	"time"
)

// cloneFaults start a machine that has a copy of another's files, as a cloned VM does.
func cloneFaults() []fault {
	return []fault{
		{"clone", func(h *history, m *machine) (func(), time.Duration) { return h.clone(m, m.cloneIP()) }},
		{"clone, same address", func(h *history, m *machine) (func(), time.Duration) { return h.clone(m, m.ip) }},
		{"clone of one that is stopped", func(h *history, m *machine) (func(), time.Duration) {
			lift, after := h.stopped(m)
			end, longer := h.clone(m, m.cloneIP())
			return func() { lift(); time.Sleep(longer); end() }, after
		}},
		{"clone of one that is dead", func(h *history, m *machine) (func(), time.Duration) {
			again, after := h.ended(m, m.kill)
			end, longer := h.clone(m, m.cloneIP())
			return func() { again(); time.Sleep(longer); end() }, after
		}},
	}
}

// cloneIP returns an address that no machine has had.
func (m *machine) cloneIP() netip.Addr {
	m.clones++
	return netip.AddrFrom4([4]byte{192, 1, byte(m.clones), byte(m.machine)})
}

// clone starts a clone of m, which lives for a time. It is a machine of its own that nothing else befalls.
func (h *history) clone(m *machine, ip netip.Addr) (func(), time.Duration) {
	c := &machine{h: h, host: host{len(h.machines) + int(h.clones.Add(1)), m.id, ip}, former: slices.Clone(m.former), copied: m.serving()}
	h.logf(m.name(), "is cloned as %s", c.name())
	c.start()
	return c.kill, h.while()
}
