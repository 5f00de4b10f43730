package main

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSoak carries mixed traffic between hosts of every kind while the underlay
// between them loses, doubles and reorders packets, and in the second run damages
// them at every header too. Nothing wrong may reach an application, the daemons'
// books must close, and their memory must not grow.
//
// Each run is over after a second and a half, or after what OVERLAYD_SOAK says, as in make test-long:
//
//	OVERLAYD_SOAK=10m go test -run TestSoak -timeout 30m -v ./cmd/overlayd
func TestSoak(t *testing.T) {
	for _, tool := range []string{"nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test needs %s: apt-get install nftables iproute2 (make test does)", tool)
		}
	}
	alone(t)
	length := durationFrom(t, "OVERLAYD_SOAK", 1500*time.Millisecond)
	t.Run("default offloads", func(t *testing.T) { soak(t, length, false) })
	t.Run("damage", func(t *testing.T) { soak(t, length, true) })
}

// soakHosts are the kinds of hosts, and soakPairs those that talk to each other.
func soakHosts() [][]string {
	return [][]string{
		{"--dataplane", modeUserspace},
		{"--dataplane", modeUserspace},
		{"--dataplane", modeKernel},
		{"--dataplane", modeUserspace, "--debug-offloads", "none"},
	}
}

func soakPairs() [][2]int { return [][2]int{{0, 1}, {0, 2}, {1, 3}, {3, 2}} }

// newSoakCluster starts the hosts, makes a pod on each, and then injects the faults.
func newSoakCluster(t *testing.T, damage bool) (c *cluster, pods []*pod) {
	t.Helper()
	c = newCluster(t, len(soakHosts()), testNetwork)
	for i, args := range soakHosts() {
		h := c.hosts[i]
		h.openBooks()
		if damage { // with offloads nobody computes the checksums that tell
			h.Must(func() error { return txChecksums("eth0", false) })
		}
		h.up(args...)
		p := h.pod(0, 0)
		if damage {
			p.Must(func() error { return txChecksums("eth0", false) })
		}
		pods = append(pods, p)
	}
	for _, p := range soakPairs() {
		warmUp(t, pods[p[0]], pods[p[1]])
	}
	c.injectFaults(damage)
	return c, pods
}

func soak(t *testing.T, length time.Duration, damage bool) {
	c, pods := newSoakCluster(t, damage)
	var guessing []netip.Addr
	for i, p := range pods {
		if damage && soakHosts()[i][1] == modeUserspace {
			guessing = append(guessing, p.addr)
		}
	}
	traffic := newSoakTraffic(guessing...)
	for _, p := range soakPairs() {
		traffic.start(pods[p[0]], pods[p[1]])
	}
	// The buffers are in memory once they were used; a third of the time does that.
	time.Sleep(length / 3)
	warm := c.residentMemory()
	time.Sleep(length - length/3)
	end := c.residentMemory()
	traffic.finish(t, func() uint64 {
		n, _ := counter(c.under, "netdev", "chaos", "damaged")
		return n
	})
	t.Logf("faults: %s", strings.Join(c.faults(), ", "))
	c.freeze()
	for i, h := range c.hosts {
		if h.daemon.stop(unix.SIGTERM) != 0 {
			t.Errorf("%s: exit code %d", h.name, h.daemon.cmd.ProcessState.ExitCode())
		}
		t.Logf("%s: resident memory %d kB, then %d kB", h.name, warm[i], end[i])
		if grown := end[i] - warm[i]; grown > 5<<10 && !raceEnabled {
			t.Errorf("%s: resident memory grew by %d kB", h.name, grown)
		}
		if soakHosts()[i][1] == modeUserspace {
			h.checkBooks(damage, 0)
		}
	}
}

// residentMemory returns VmRSS of each daemon in kB.
func (c *cluster) residentMemory() (kb []int) {
	c.t.Helper()
	for _, h := range c.hosts {
		kb = append(kb, h.daemon.resident())
	}
	return kb
}
