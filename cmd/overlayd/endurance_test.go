package main

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEndurance has ten hosts of both dataplanes talk to each other, with a fault every 15 seconds for as long as
// OVERLAYD_ENDURANCE says, as in make test-long; OVERLAYD_SEED repeats a run. None is drawn again before all were.
//
// Only a crash of a userspace daemon may lose datagrams, and only those of its own host, from when it is killed until all
// flows go on: one of each flow if a supervisor keeps its queues and sockets. A change of the dataplane may lose two of
// each flow of its host, of a hundred a second. All other faults may lose none: restarts under a supervisor, daemons that take each
// other's place, crashes in kernel mode, whatever becomes of etcd and of what is in it, and what others do to a host that
// keeps no packet from its way.
//
// After each fault every lease is as it was, and the host has what it had. In the end that holds for each host and each of
// its objects, the daemons that were never ended have as many files and goroutines as in the beginning and have not grown,
// and their books close.
//
// Without OVERLAYD_ENDURANCE two hosts have two faults, and the test sees which of them loses what it may not.
func TestEndurance(t *testing.T) {
	alone(t)
	length := durationFrom(t, "OVERLAYD_ENDURANCE", 0)
	if length == 0 {
		seeLosses(t)
		return
	}
	seed := numberFrom(t, "OVERLAYD_SEED", rand.Uint64())
	t.Logf("OVERLAYD_SEED=%d repeats this", seed)
	e := newEndurance(t, seed, tenParts())
	for i := range e.members {
		e.talk(i, i+1, 0)
		e.talk(i, i+2, 1)
	}
	e.start()
	e.endure(length, seed)
	e.finish()
}

// tenParts are five hosts of each dataplane. Each talks to the next two, so to hosts of both dataplanes, and to
// such whose daemons end.
func tenParts() []part {
	return []part{
		{steady, modeKernel, nil},
		{steady, modeKernel, nil},
		{steady, modeUserspace, nil},
		{steady, modeUserspace, []string{"--debug-offloads", "none"}},
		{watched, modeKernel, nil},
		{watched, modeUserspace, nil},
		{restarted, modeKernel, nil},
		{restarted, modeUserspace, nil},
		{changing, modeKernel, nil},
		{changing, modeUserspace, nil},
	}
}

// endurance is a cluster that has one fault after the other.
type endurance struct {
	*cluster
	members  []*member
	guest    *host    // joins now and then
	left     []string // words of what hosts have of peers that have left
	config   string
	rnd      *rand.Rand
	books    ledger
	last     marks  // when the last fault was over
	latest   string // its name and place
	readings map[*member][]reading
	faults   []string
}

// newEndurance starts a cluster with a host for each part, and a pod behind each.
func newEndurance(t *testing.T, seed uint64, parts []part) *endurance {
	t.Helper()
	e := &endurance{config: filterNFT.in(dualNetwork), rnd: rand.New(rand.NewPCG(seed, 1)), readings: map[*member][]reading{}}
	e.books.lost = map[string]uint64{}
	e.cluster = newCluster(t, len(parts)+1, e.config)
	for i, p := range parts {
		e.members = append(e.members, newMember(e.hosts[i], p))
	}
	e.guest = e.hosts[len(parts)]
	for _, m := range e.members {
		m.begin()
	}
	for _, m := range e.members {
		if m.daemon != nil {
			m.daemon.waitLog("msg=ready", patience)
		}
		m.key, m.pod = m.host.key(), m.host.pod(0, 0)
		m.lease = e.get(m.key)
	}
	return e
}

// talk starts flows between two hosts, counted round, by one family.
func (e *endurance) talk(a, b, family int) {
	e.books.start(e.t, e.members[a%len(e.members)], e.members[b%len(e.members)], family)
}

// keptPeers is how long a host has what it had of a peer that has left, if most leases go within a minute.
const keptPeers = 65 * time.Second

// start takes down what each host has at the beginning.
func (e *endurance) start() {
	for _, m := range e.members {
		m.settled()
		if m.plays == changing {
			m.change()
			m.settled()
			m.change()
		}
	}
	for _, m := range e.steady() {
		e.readings[m] = []reading{m.daemon.calm()}
	}
	e.last, e.latest = e.books.waitGoing(e.t, e.books.marks()), "the start"
}

// steady are the members whose daemons never end.
func (e *endurance) steady() (all []*member) {
	for _, m := range e.members {
		if m.plays == steady {
			all = append(all, m)
		}
	}
	return all
}

// gauge takes a reading of each daemon that never ends.
func (e *endurance) gauge() {
	for _, m := range e.steady() {
		if !m.runs() {
			e.t.Fatalf("%s has ended: %v", m.name, m.daemon.err)
		}
		e.readings[m] = append(e.readings[m], m.daemon.gauged())
	}
}

// otherThan returns another member.
func (e *endurance) otherThan(m *member) *member {
	others := slices.DeleteFunc(slices.Clone(e.members), func(o *member) bool { return o == m })
	return others[e.rnd.IntN(len(others))]
}

// endure has a fault every 15 seconds.
func (e *endurance) endure(length time.Duration, seed uint64) {
	all := trials()
	drawn := draw(slices.Sorted(maps.Keys(all)), seed)
	for until := time.Now().Add(length); time.Now().Before(until); {
		next, name := time.Now().Add(15*time.Second), drawn()
		for _, line := range e.try(name, all[name], e.choose(all[name])) {
			e.t.Error(line)
		}
		e.gauge()
		time.Sleep(time.Until(next))
	}
}

// choose returns a member at which a fault can be.
func (e *endurance) choose(tr trial) *member {
	can := slices.DeleteFunc(slices.Clone(e.members), func(m *member) bool { return tr.at != nil && !tr.at(m) })
	return can[e.rnd.IntN(len(can))]
}

// try has one fault at a member, and returns a line for each flow that has lost more than it may, then or since the last
// fault.
func (e *endurance) try(name string, tr trial, m *member) (wrong []string) {
	what, before, may := name+" at "+m.name, e.books.marks(), none
	wrong = e.books.enter("after "+e.latest, e.last, before, none)
	if tr.may != nil {
		may = upTo(tr.may(m), m)
	}
	began := time.Now()
	tr.do(e, m)
	e.last, e.latest = e.books.waitGoing(e.t, e.books.marks()), what
	e.faults = append(e.faults, fmt.Sprintf("%s: %s", what, time.Since(began).Round(time.Millisecond)))
	wrong = append(wrong, e.books.enter(name+" in "+m.mode+" mode", before, e.last, may)...)
	m.whole(what, patience, e.left...)
	return wrong
}

// finish checks what has to be right in the end.
func (e *endurance) finish() {
	for _, line := range e.books.enter("after "+e.latest, e.last, e.books.marks(), none) {
		e.t.Error(line)
	}
	e.checkReadings()
	for _, m := range e.members {
		m.whole("the end", keptPeers+patience)
		if d := difference(m.objects[m.mode], nil, m.everything()); len(d) > 0 {
			e.t.Errorf("%s is not as it was:\n%s", m.name, strings.Join(d, "\n"))
		}
	}
	e.books.end()
	e.silence()
	sent, lost, doubled := e.books.totals()
	e.t.Logf("%d faults: %s", len(e.faults), strings.Join(e.faults, "; "))
	e.t.Logf("%d datagrams sent, %d lost: %v, %d received twice", sent, lost, e.books.costs(), doubled)
	e.close()
}

// silence lets no daemon hear of the others any more, so that no probe is on its way when one ends.
func (e *endurance) silence() {
	var s strings.Builder
	s.WriteString("table netdev silence {\n")
	for i := range e.hosts {
		fmt.Fprintf(&s, "chain port%d { type filter hook ingress device port%[1]d priority 0; udp dport 8472 drop; }\n", i)
	}
	e.nft(s.String() + "}\n")
	e.quiet()
}

// checkReadings waits until the daemons that never ended are as they should be.
func (e *endurance) checkReadings() {
	for _, m := range e.steady() {
		var wrong []string
		for began := time.Now(); time.Since(began) < patience; time.Sleep(200 * time.Millisecond) {
			if wrong = judge(append(e.readings[m], m.daemon.gauged())); len(wrong) == 0 {
				break
			}
		}
		e.t.Logf("%s, %s: %s", m.name, m.mode, summary(e.readings[m]))
		for _, line := range wrong {
			e.t.Errorf("%s, %s: %s", m.name, m.mode, line)
		}
	}
}

// close ends the daemons, and checks the books of those that counted from the beginning.
func (e *endurance) close() {
	for _, m := range e.members {
		if m.unit != nil {
			continue
		}
		if code := m.daemon.stop(unix.SIGTERM); code != 0 {
			e.t.Errorf("%s: exit code %d", m.name, code)
		}
		if m.plays == steady && m.mode == modeUserspace {
			m.checkBooks(false, forgedSize)
		}
	}
}

// costs are what was lost by which fault.
func (l *ledger) costs() (all []string) {
	for _, name := range slices.SortedFunc(maps.Keys(l.lost), func(a, b string) int { return cmp.Compare(l.lost[b], l.lost[a]) }) {
		if n := l.lost[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s: %d", name, n))
		}
	}
	return all
}

// seeLosses has faults with a cost that is known.
func seeLosses(t *testing.T) {
	e := newEndurance(t, 1, []part{{steady, modeUserspace, nil}, {restarted, modeUserspace, nil}})
	e.talk(0, 1, 0)
	e.start()
	cut := trial{do: func(_ *endurance, m *member) {
		m.Run("sh", "-c", "nft 'table ip cut { chain forward { type filter hook forward priority 0; drop; }; }'; sleep 0.1; nft delete table ip cut")
	}}
	for _, c := range []struct {
		name  string
		tr    trial
		at    int
		wrong int // flows
	}{
		{"killed", trials()["killed"], 1, 0},
		{"cut", cut, 1, 2},
	} {
		if wrong := e.try(c.name, c.tr, e.members[c.at]); len(wrong) != c.wrong {
			t.Errorf("%s: %d flows have lost too much, want %d:\n%s", c.name, len(wrong), c.wrong, strings.Join(wrong, "\n"))
		}
		e.gauge()
	}
	if e.books.lost["killed in userspace mode"] == 0 {
		t.Error("a crash has lost nothing")
	}
	e.finish()
}
