package main

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// movesAtRandom is a cluster whose hosts come to new addresses and to each other's.
type movesAtRandom struct {
	*cluster
	rnd    *rand.Rand
	unused netip.Addr
	began  time.Time // of the last start or move
}

// TestMovesAtRandom takes three random steps, or as many as OVERLAYD_MOVES says, as in make test-long.
// After each of them all pods reach each other, and every host has its subnet and the MAC of its
// address. OVERLAYD_SEED repeats a run.
func TestMovesAtRandom(t *testing.T) {
	t.Parallel()
	steps, seed := numberFrom(t, "OVERLAYD_MOVES", 3), numberFrom(t, "OVERLAYD_SEED", rand.Uint64())
	t.Logf("OVERLAYD_SEED=%d repeats this", seed)
	m := &movesAtRandom{cluster: newCluster(t, 4, testNetwork), rnd: rand.New(rand.NewPCG(seed, 0)),
		unused: netip.MustParseAddr("192.0.2.50")}
	var pods []*pod
	had := map[*host]netip.Prefix{}
	for _, h := range m.hosts {
		m.start(h)
		pods = append(pods, h.pod(0, 0))
		had[h] = h.gateway()
	}
	for step := range steps {
		m.rnd.Shuffle(len(m.hosts), func(i, j int) { m.hosts[i], m.hosts[j] = m.hosts[j], m.hosts[i] })
		what := m.step()
		meet(t, patience, pods...)
		t.Logf("step %d: %s: all pairs after %s", step, what, time.Since(m.began))
		for _, h := range m.hosts {
			if got := h.gateway(); got != had[h] {
				t.Fatalf("%s has %s, had %s", h.name, got, had[h])
			}
		}
		if m.checkMACs(m.hosts...); t.Failed() {
			t.FailNow()
		}
	}
}

// numberFrom returns the number that an environment variable holds, or otherwise if it is not set.
func numberFrom(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// step does one thing, and says what.
func (m *movesAtRandom) step() (what string) {
	signal := []unix.Signal{unix.SIGTERM, unix.SIGKILL}[m.rnd.IntN(2)]
	n := 2 + m.rnd.IntN(len(m.hosts)-1)
	m.began = time.Now()
	switch m.rnd.IntN(4) {
	case 0:
		m.hosts[0].leaves()
		m.hosts[0].arrives(m.next())
		return "one moves, running"
	case 1:
		m.rotate(n)
		return strconv.Itoa(n) + " exchange addresses, running"
	case 2:
		m.stop(signal, n)
		m.rotate(n)
		m.startAll(n)
		return strconv.Itoa(n) + " exchange addresses, " + signal.String()
	}
	m.stop(signal, 2)
	was := m.hosts[0].addr
	m.hosts[0].leaves()
	m.hosts[1].leaves()
	m.hosts[0].arrives(m.next())
	m.hosts[1].arrives(was)
	m.startAll(2)
	return "one moves and another one follows, " + signal.String()
}

// next returns an address that no host has had.
func (m *movesAtRandom) next() netip.Addr {
	m.unused = m.unused.Next()
	return m.unused
}

func (m *movesAtRandom) stop(signal unix.Signal, n int) {
	for _, h := range m.hosts[:n] {
		h.daemon.stop(signal)
	}
}

// startAll starts the first n hosts in some order.
func (m *movesAtRandom) startAll(n int) {
	for _, i := range m.rnd.Perm(n) {
		m.start(m.hosts[i])
	}
}

// start starts a host in some mode.
func (m *movesAtRandom) start(h *host) {
	m.began = time.Now()
	h.start("--dataplane", []string{modeKernel, modeUserspace}[m.rnd.IntN(2)])
}
