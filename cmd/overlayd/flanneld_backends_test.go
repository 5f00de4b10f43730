//go:build flannel

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// flanneldOf starts a real flanneld on the host and waits for this line of its log.
func (h *host) flanneldOf(line string) {
	h.c.t.Helper()
	program := os.Getenv("OVERLAYD_FLANNELD")
	if program == "" {
		h.c.t.Fatal("OVERLAYD_FLANNELD is not set: run make test-flannel")
	}
	cmd := exec.Command(program, "-etcd-endpoints", h.c.url, "-iface", "eth0", "-ip-masq", "-subnet-file", h.subnetFile)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/sbin:"+os.Getenv("PATH")) // iptables
	h.daemon = startCommand(h.c.t, h.NS, h.name+" flanneld", cmd)
	h.Must(func() error { return rtnl.SetSysctl(ipForward, "1") })
	h.daemon.waitLog(line, patience)
}

// without is the lease and the subnet file of a host without what is its own.
func (h *host) without() (lease, file string) {
	h.c.t.Helper()
	b, err := os.ReadFile(h.subnetFile)
	if err != nil {
		h.c.t.Fatal(err)
	}
	return strings.ReplaceAll(h.c.get(h.key()), h.addr.String(), "IP"), strings.ReplaceAll(string(b), h.gateway().String(), "SUBNET")
}

// TestFlanneldHostGW: a flanneld and overlayds with the backend host-gw write the same and reach each other; on one host
// either takes the place of the other and keeps the subnet, and no datagram is lost.
func TestFlanneldHostGW(t *testing.T) {
	c := newCluster(t, 2, hostGWNetwork)
	swapped, other := c.hosts[0], c.hosts[1]
	swapped.flanneldOf("Running backend")
	other.up("--ip-masq")
	a, b := swapped.pod(0, 0), other.pod(0, 0)
	warmUp(t, a, b)
	lease, file := swapped.without()
	if l, f := other.without(); l != lease || f != file {
		t.Errorf("flanneld writes %s and %s, overlayd %s and %s", lease, file, l, f)
	}
	checkPair(t, swapped, a, other, b, 10<<20)
	subnet := swapped.gateway()
	for _, step := range []func(){func() { swapped.up("--ip-masq") }, func() { swapped.flanneldOf("Running backend") }} {
		var meters []*meter
		for _, way := range [][2]*pod{{a, b}, {b, a}} {
			m, err := startMeter(way[0].NS, way[1].NS, way[1].addr, 2*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			waitTraffic(t, m, 100)
			meters = append(meters, m)
		}
		swapped.daemon.stop(unix.SIGTERM)
		step()
		for _, m := range meters {
			waitTraffic(t, m, 500)
			if lost := m.finish(); lost > 0 {
				t.Errorf("%d of %d datagrams lost, longest gap %s", lost, m.sent.Load(), time.Duration(m.gap.Load()))
			}
		}
		if got := swapped.gateway(); got != subnet {
			t.Fatalf("subnet %s, it was %s", got, subnet)
		}
		warmUp(t, a, b)
	}
	other.daemon.stop(unix.SIGTERM)
	other.flanneldOf("Running backend")
	warmUp(t, a, b)
}

// TestFlanneldAlloc: a flanneld and an overlayd with the backend alloc write the same and share the network.
func TestFlanneldAlloc(t *testing.T) {
	c := newCluster(t, 2, allocNetwork)
	c.hosts[0].flanneldOf("Running backend")
	c.hosts[1].up("--ip-masq")
	lease, file := c.hosts[0].without()
	if l, f := c.hosts[1].without(); l != lease || f != file {
		t.Errorf("flanneld writes %s and %s, overlayd %s and %s", lease, file, l, f)
	}
	if c.hosts[0].gateway() == c.hosts[1].gateway() {
		t.Errorf("both have %s", c.hosts[0].gateway())
	}
}
