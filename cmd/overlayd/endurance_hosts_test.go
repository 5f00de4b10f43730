package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// The parts that hosts play in the endurance test.
const (
	steady    = "steady"    // its daemon never ends, and is measured
	watched   = "watched"   // a supervisor starts its daemon again, as systemd does
	restarted = "restarted" // whoever ends its daemon starts another one
	changing  = "changing"  // and that may have the other dataplane
)

// part is one of them with a dataplane.
type part struct {
	plays, mode string
	args        []string
}

// member is a host of the endurance test, with a pod behind it.
type member struct {
	*host
	part
	unit       *supervised // if it has one
	pod        *pod
	key, lease string
	healthy    map[string]string   // kept, by the mode
	objects    map[string][]string // of the host, by the mode
}

// flags are those of each of its daemons. Leases are so short that they are renewed all the time.
func (m *member) flags() []string {
	return append([]string{"--dataplane", m.mode, "--ip-masq", "--lease-ttl", "60s", "--healthz-ip", "127.0.0.1", "--healthz-port", "8081"}, m.args...)
}

// begin starts the first daemon, which need not be ready when it returns.
func (m *member) begin() {
	m.c.t.Helper()
	switch m.plays {
	case watched:
		m.unit = m.supervise(m.flags()...)
	case steady:
		if m.mode == modeUserspace {
			m.openBooks()
		}
		m.daemon = m.overlaydWith([]string{asGauged + "=1"}, append(m.flags(), "--etcd-endpoints", m.c.url, "--subnet-file", m.subnetFile)...)
	default:
		m.start(m.flags()...)
	}
}

// settled takes down what the host has when all is well.
func (m *member) settled() {
	m.c.t.Helper()
	for m.healthy[m.mode] = m.kept(); m.healthy[m.mode] != m.kept(); m.healthy[m.mode] = m.kept() { // it has just begun
		time.Sleep(50 * time.Millisecond)
	}
	m.objects[m.mode] = m.everything()
}

// everything returns the objects of the host, overlayd's and others', and the names of the files.
func (m *member) everything() (lines []string) {
	m.c.t.Helper()
	for _, line := range (&inventory{host: m.host, dir: filepath.Dir(m.subnetFile)}).take() {
		if strings.HasPrefix(line, "file ") {
			line, _, _ = strings.Cut(line, ":")
		}
		if strings.Contains(line, ".leases ") { // is written some time after the first lease was
			continue
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// whole waits until the host has all that it should, in the store too. What it has beyond that with one of these words in
// it does not matter.
func (m *member) whole(what string, limit time.Duration, words ...string) {
	t := m.c.t
	t.Helper()
	eventually(t, patience, what+": lease and record in the store", func() error {
		if got := m.c.get(m.key); got != m.lease {
			return fmt.Errorf("lease of %s is %q, was %s", m.name, got, m.lease)
		}
		if m.c.get(storePrefix+"overlayd/nodes/"+m.addr.String()) == "" {
			return fmt.Errorf("no record of %s", m.name)
		}
		return nil
	})
	eventually(t, patience, what+": ready", func() error {
		if got := get(t, m.host, "127.0.0.1:8081", "/readyz"); !strings.HasPrefix(got, "200") {
			return errors.New(got)
		}
		return nil
	})
	eventually(t, limit, what+": all that "+m.name+" keeps is as it was", func() error {
		kept := slices.DeleteFunc(strings.Split(m.kept(), "\n"), func(line string) bool {
			return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, word) })
		})
		if got := strings.Join(kept, "\n"); got != m.healthy[m.mode] {
			return fmt.Errorf("it differs:\n%s", differencesOf(m.healthy[m.mode], got))
		}
		return nil
	})
}

// end ends the daemon, and waits until another one is ready.
func (m *member) end(sig unix.Signal) {
	m.c.t.Helper()
	if m.unit != nil {
		m.unit.again(sig)
		return
	}
	code := m.daemon.stop(sig)
	if sig == unix.SIGTERM && code != 0 {
		m.c.t.Errorf("%s: exit code %d", m.name, code)
	}
	m.up(m.flags()...)
}

// replace lets a daemon take the place of the one that runs.
func (m *member) replace() {
	m.c.t.Helper()
	before := m.daemon
	m.up(append(m.flags(), "--replace")...)
	if code := before.wait(patience); code != 0 {
		m.c.t.Errorf("%s: exit code %d of the daemon that was replaced", m.name, code)
	}
}

// change gives the host the other dataplane, as docs/from-flannel.md tells.
func (m *member) change() {
	m.c.t.Helper()
	if m.mode == modeUserspace {
		m.drainToKernel()
		m.mode = modeKernel
	} else {
		m.daemon.stop(unix.SIGTERM)
		m.mode = modeUserspace
	}
	m.up(m.flags()...)
}

// runs reports whether the daemon that was started first has not ended.
func (m *member) runs() bool {
	select {
	case <-m.daemon.done:
		return false
	default:
		return true
	}
}

// newMember gives a host a part, and a small disk for its files.
func newMember(h *host, p part) *member {
	h.name += " (" + p.plays + ")"
	h.subnetFile = filepath.Join(netnstest.SmallDisk(h.c.t, "size=256k"), "subnet.env")
	return &member{host: h, part: p, healthy: map[string]string{}, objects: map[string][]string{}}
}
