package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// refusedLease is one of many leases that can be read and that nobody uses: of each kind that somebody can write without end.
func refusedLease(i int) (key, value string) {
	n := i / 4
	value = vxlanValue(fmt.Sprintf("198.18.%d.%d", n>>8&0xff, n&0xff), fmt.Sprintf("0e:00:01:%02x:%02x:%02x", n>>16, n>>8&0xff, n&0xff))
	switch v6 := fmt.Sprintf("fd10:%x:%x::-64", 1+n>>15, 1+n&0x7fff); i % 4 {
	case 0: // outside of the network
		return fmt.Sprintf("11.%d.%d.%d-31", n>>15&0xff, n>>7&0xff, n&0x7f*2), value
	case 1: // of the wrong length
		return fmt.Sprintf("10.5.%d.%d-31", n>>7&0xff, n&0x7f*2), value
	case 2: // on a subnet that an older lease has
		return "10.5.240.0-24&" + v6, value
	default: // without what is needed to send to it
		return "0.0.0.0-0&" + v6, `{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::1","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"0e:00:00:00:02:40"}}`
	}
}

// TestRefusedLeases: many leases that can be read and that are refused cost a good one no time, the daemons neither memory nor their log,
// and no peer a packet, also while a daemon starts again. OVERLAYD_JUNK, as in make test-long, is how many there are, and has the times
// checked.
func TestRefusedLeases(t *testing.T) {
	t.Parallel()
	n := int(numberFrom(t, "OVERLAYD_JUNK", 12_000))
	strict := n >= 100_000
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	c.put(subnets+"10.5.240.0-24", vxlanValue("192.0.2.240", "0e:00:00:00:03:01")) // the older lease
	modes := [2]string{modeKernel, modeUserspace}
	a, b := c.upPair(modes)
	there, back := startMeters(t, a, b)
	h := c.hosts[0]
	said := make([]int, len(c.hosts))
	for i, h := range c.hosts {
		said[i] = len(h.daemon.text())
	}
	began := time.Now()
	slowest := h.slowestBeside(n, func(i int) clientv3.Op {
		key, value := refusedLease(i)
		return clientv3.OpPut(subnets+key, value)
	})
	took := time.Since(began)
	var rest time.Duration // with all of them there
	for i := range 5 {
		rest = max(rest, h.learns(i+64))
	}
	for i, h := range c.hosts {
		h.daemon.waitLog("lease not used: and more", patience)
		t.Logf("%s: %d leases in %s: a lease was used after %s at most, then %s; %d kB of memory", modes[i], n, took.Round(time.Millisecond), slowest, rest, h.daemon.peak())
		if lines := strings.Count(h.daemon.text()[said[i]:], "\n"); float64(lines) > 100*(1+took.Minutes()) {
			t.Errorf("%s: %d lines in %s:\n%s", modes[i], lines, took, h.daemon.text()[said[i]:])
		}
	}
	if limit := 200 * time.Millisecond; max(slowest, rest) > limit && strict || max(slowest, rest) > promised(10*limit) {
		t.Errorf("a lease was used after %s, want %s", max(slowest, rest), limit)
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	for i, h := range c.hosts {
		there, back := startMeters(t, a, b)
		peak, args := h.daemon.peak(), []string{"--dataplane", modes[i]}
		if modes[i] == modeKernel {
			h.daemon.stop(unix.SIGKILL)
		} else {
			args = append(args, "--replace")
		}
		h.up(args...)
		h.learns(70)
		if most := max(peak, h.daemon.peak()); most > maxResident && !raceEnabled {
			t.Errorf("%s: %d kB of memory, want at most %d", modes[i], most, maxResident)
		}
		warmUp(t, a, b)
		lost := there.finish() + back.finish()
		t.Logf("%s: %d kB of memory after a restart, which cost %d datagrams", modes[i], h.daemon.peak(), lost)
		if lost > 0 {
			t.Errorf("%d datagrams lost by a restart", lost)
		}
	}
}
