package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// modeFlanneld stands among the values of --dataplane for a real flanneld.
const modeFlanneld = "flanneld"

// swaps is a host whose daemon is replaced in place, while its pod talks with those of two hosts
// that keep theirs: one that forwards by the kernel, and one in userspace.
type swaps struct {
	t       *testing.T
	host    *host
	up      func(mode string) // starts the daemon and waits until it is ready
	a, b, c *pod              // of host, and of the two others
	now     string            // the mode
	strict  bool              // nothing may be lost
}

// begin starts the first daemon and those of the other hosts, by up.
func (s *swaps) begin(first, kernel string, up func(h *host, mode string)) {
	s.t.Helper()
	c := s.host.c
	s.now, s.up = first, func(mode string) { up(s.host, mode) }
	s.up(first)
	up(c.hosts[1], kernel)
	up(c.hosts[2], modeUserspace)
	s.a, s.b, s.c = s.host.pod(0, 0), c.hosts[1].pod(0, 0), c.hosts[2].pod(0, 0)
}

// mayLose is how many packets, of 100 a second in one direction, a swap may cost.
func mayLose(from, to string) uint64 {
	if from == modeUserspace || to == modeUserspace {
		return 2
	}
	return 0
}

// direction is one flow of packets of which none, or hardly any, may be lost.
type direction struct {
	name string
	*meter
}

// flows starts 100 packets a second in three directions, in each family, and returns once they
// arrive.
func (s *swaps) flows() (all []direction) {
	s.t.Helper()
	for i, addr := range s.a.addrs {
		for _, d := range []struct {
			name     string
			from, to *netnstest.NS
			addr     netip.Addr
		}{
			{"to the kernel's peer", s.a.NS, s.b.NS, s.b.addrs[i]},
			{"from the kernel's peer", s.b.NS, s.a.NS, addr},
			{"to the userspace peer", s.a.NS, s.c.NS, s.c.addrs[i]},
		} {
			eventually(s.t, patience, d.name, func() error { return echoWithin(d.from, d.addr, 56, 100*time.Millisecond) })
			m, err := startMeter(d.from, d.to, d.addr, pace100)
			if err != nil {
				s.t.Fatal(err)
			}
			all = append(all, direction{d.name + " at " + d.addr.String(), m})
		}
	}
	s.waitFlows(all, 20)
	return all
}

// waitFlows returns when n more packets of one of them have arrived: what the others lose is counted
// in the end.
func (s *swaps) waitFlows(all []direction, n uint64) {
	s.t.Helper()
	waitTraffic(s.t, all[len(all)-1].meter, n)
}

// stop ends the daemon in the way that docs/from-flannel.md tells: from userspace the kernel takes over.
func (s *swaps) stop() {
	s.t.Helper()
	if s.now != modeUserspace {
		s.host.daemon.stop(unix.SIGTERM)
		return
	}
	s.host.drainToKernel()
}

// drainToKernel ends the daemon of a userspace dataplane.
func (h *host) drainToKernel() {
	h.c.t.Helper()
	drain := h.overlayd("drain", "--to=kernel", "--subnet-file", h.subnetFile)
	if code := drain.wait(patience); code != 0 || !strings.Contains(drain.text(), "the kernel forwards") {
		h.c.t.Errorf("drain --to=kernel: exit code %d: %s", code, drain.text())
	}
	if code := h.daemon.wait(patience); code != 0 {
		h.c.t.Errorf("the daemon that was drained has exit code %d", code)
	}
}

// to replaces the daemon by one of another mode, and counts what is lost.
func (s *swaps) to(mode string) {
	s.t.Helper()
	subnets, all := s.host.gateways(), s.flows()
	s.stop()
	s.waitFlows(all, 20) // nobody is in a hurry to start the next
	s.up(mode)
	s.waitFlows(all, 100)
	for _, d := range all {
		lost, limit := d.finish(), mayLose(s.now, mode)
		if s.strict {
			limit = 0
		}
		s.t.Logf("%s → %s: %d of %d packets %s lost, longest gap %s",
			s.now, mode, lost, d.sent.Load(), d.name, time.Duration(d.gap.Load()))
		if lost > limit {
			s.t.Errorf("%s → %s: %d packets %s lost, want at most %d", s.now, mode, lost, d.name, limit)
		}
	}
	if got := s.host.gateways(); !slices.Equal(got, subnets) {
		s.t.Errorf("%s → %s: subnets are %s, were %s", s.now, mode, got, subnets)
	}
	s.now = mode
}

// pace100 is the time between two packets of 100 a second.
const pace100 = 10 * time.Millisecond

// stallLinks makes every change of a link, an address or a route on this machine wait for tens of milliseconds, as on a busy one: until
// the test ends links with many queues come and go in another namespace, each with the kernel's lock of the network configuration.
func stallLinks(t *testing.T) {
	t.Helper()
	ns, quit, ended := netnstest.New(t), make(chan struct{}), make(chan error, 1)
	go func() { ended <- ns.Do(func() error { return addAndRemoveLinks(quit) }) }()
	t.Cleanup(func() {
		close(quit)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func addAndRemoveLinks(quit <-chan struct{}) error {
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "busy", NumTxQueues: 1024, NumRxQueues: 1024}, PeerName: "peer"}
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("add a link with many queues: %w", err)
		}
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove it: %w", err)
		}
	}
}

// TestSwapInPlace: a change of the dataplane costs nothing of the pods' traffic, in both
// families, however long each change of a link takes.
func TestSwapInPlace(t *testing.T) {
	alone(t)
	s := &swaps{t: t, host: newClusterOn(t, []string{under4, under6}, 3, dualNetwork).hosts[0], strict: true}
	s.begin(modeKernel, modeKernel, func(h *host, mode string) { h.up("--dataplane", mode) })
	stallLinks(t)
	for _, mode := range []string{modeKernel, modeUserspace, modeUserspace, modeKernel} {
		s.to(mode)
	}
}

// TestDrainToKernelWithoutDaemon: the command itself makes the kernel forward for a daemon that was
// killed, and keeps the lease.
func TestDrainToKernelWithoutDaemon(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	h := c.hosts[0]
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	key, lease := h.key(), c.get(h.key())
	h.daemon.stop(unix.SIGKILL)
	drain := h.overlayd("drain", "--to=kernel", "--etcd-endpoints", c.url, "--subnet-file", h.subnetFile)
	if code := drain.wait(patience); code != 0 || !strings.Contains(drain.text(), "no daemon was running") {
		t.Fatalf("exit code %d: %s", code, drain.text())
	}
	warmUp(t, a, b)
	warmUp(t, b, a)
	if got := c.get(key); got != lease {
		t.Errorf("lease is %s, was %s", got, lease)
	}
	if out := h.Run("ip", "-d", "link", "show", "flannel.1"); !strings.Contains(out, "vxlan id 1 ") {
		t.Errorf("flannel.1: %s", out)
	}
}

// TestDrainToElsewhere: drain refuses a --to other than kernel as a wrong use.
func TestDrainToElsewhere(t *testing.T) {
	t.Parallel()
	h := newCluster(t, 1, testNetwork).hosts[0]
	if p := h.overlayd("drain", "--to=userspace", "--subnet-file", h.subnetFile); p.wait(patience) != 2 || !strings.Contains(p.text(), "--to") {
		t.Errorf("got %s", p.text())
	}
}
