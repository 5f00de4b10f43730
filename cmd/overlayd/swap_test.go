package main

import (
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

// stop ends the daemon in the way that the README tells: from userspace the kernel takes over.
func (s *swaps) stop() {
	s.t.Helper()
	if s.now != modeUserspace {
		s.host.daemon.stop(unix.SIGTERM)
		return
	}
	drain := s.host.overlayd("drain", "--to=kernel", "--subnet-file", s.host.subnetFile)
	if code := drain.wait(patience); code != 0 || !strings.Contains(drain.text(), "the kernel forwards") {
		s.t.Errorf("drain --to=kernel: exit code %d: %s", code, drain.text())
	}
	if code := s.host.daemon.wait(patience); code != 0 {
		s.t.Errorf("the daemon that was drained has exit code %d", code)
	}
}

// to replaces the daemon by one of another mode, and counts what is lost.
func (s *swaps) to(mode string) {
	s.t.Helper()
	subnets, all := s.host.gateways(), s.flows()
	stalls := watchStalls(s.t)
	s.stop()
	s.waitFlows(all, 20) // nobody is in a hurry to start the next
	s.up(mode)
	s.waitFlows(all, 100)
	stalled := stalls()
	for _, d := range all {
		lost, limit := d.finish(), mayLose(s.now, mode)
		if limit > 0 {
			limit += uint64(stalled / pace100)
		}
		s.t.Logf("%s → %s: %d of %d packets %s lost, longest gap %s, the machine stalled for %s",
			s.now, mode, lost, d.sent.Load(), d.name, time.Duration(d.gap.Load()), stalled)
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

// watchStalls measures, until the function that it returns is called, for how long in all this machine
// let a process wait that did what a swap does, a change of a link: while others have the processors,
// or the kernel's lock of the network configuration, which all namespaces share.
func watchStalls(t *testing.T) (stop func() time.Duration) {
	t.Helper()
	const usual, pause = 3 * time.Millisecond, 2 * time.Millisecond
	ns, quit, stalled := netnstest.New(t), make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var sum time.Duration
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-quit:
				stalled <- sum
				return
			case <-time.After(pause):
			}
			err := ns.Do(func() error {
				lo, err := netlink.LinkByName("lo")
				if err == nil {
					err = netlink.LinkSetAlias(lo, "stalls")
				}
				return err
			})
			if took := time.Since(last) - pause; err == nil && took > usual {
				sum += took - usual
			}
		}
	}()
	return func() time.Duration { close(quit); return <-stalled }
}

// TestSwapInPlace: a change of the dataplane costs next to nothing of the pods' traffic, in both
// families.
func TestSwapInPlace(t *testing.T) {
	alone(t)
	s := &swaps{t: t, host: newClusterOn(t, []string{under4, under6}, 3, dualNetwork).hosts[0]}
	s.begin(modeKernel, modeKernel, func(h *host, mode string) { h.up("--dataplane", mode) })
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

// TestDrainToElsewhere: a word that is no place to drain to is a wrong use.
func TestDrainToElsewhere(t *testing.T) {
	t.Parallel()
	h := newCluster(t, 1, testNetwork).hosts[0]
	if p := h.overlayd("drain", "--to=userspace", "--subnet-file", h.subnetFile); p.wait(patience) != 2 || !strings.Contains(p.text(), "--to") {
		t.Errorf("got %s", p.text())
	}
}
