//go:build flannel

package main

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// step does one thing, and says what.
func (s *swapsAtRandom) step() (what string) {
	s.t.Helper()
	h := s.on[s.rnd.IntN(len(s.on))]
	for _, other := range s.on {
		if other.plain.daemon == "" && s.rnd.IntN(2) == 0 {
			h = other // what is down comes back soon
		}
	}
	was := h.plain.daemon
	if was == "" {
		return s.revive(h)
	}
	signal := []unix.Signal{unix.SIGTERM, unix.SIGKILL}[s.rnd.IntN(2)]
	name := fmt.Sprintf("%s, %s, %s", h.name, was, signal)
	switch s.rnd.IntN(10) {
	case 0, 1, 2:
		s.stop(h, signal)
		next := s.anyDaemon()
		s.start(h, next)
		return name + ", then " + next
	case 3:
		s.stop(h, signal)
		s.start(h, was)
		return name + ", then the same"
	case 4:
		s.stop(h, unix.SIGKILL)
		return fmt.Sprintf("%s, %s, is killed and stays down", h.name, was)
	case 5:
		s.stop(h, signal)
		s.command(h, "cleanup")
		s.world.cleansUp(h.index)
		return name + ", cleanup, stays down"
	case 6:
		return s.interrupted(h, name, signal)
	case 7:
		if was == modeUserspace {
			s.drain(h)
			return h.name + " drains to the kernel, stays down"
		}
		if was == modeFlanneld && len(s.world.networks) == 1 {
			return s.mistaken(h)
		}
		fallthrough
	default:
		return s.move(signal)
	}
}

// revive starts something on a host on which nothing runs.
func (s *swapsAtRandom) revive(h *swapHost) string {
	s.t.Helper()
	what := h.name
	if o := h.plain.overlays[0]; o.node && s.rnd.IntN(3) == 0 { // an overlayd's that was not cleaned up
		s.drain(h)
		what += " drains to the kernel without a daemon,"
	}
	next := s.anyDaemon()
	s.start(h, next)
	return what + " comes back as " + next
}

// mistaken runs commands on a flanneld's host that are meant for overlayd's. They change nothing.
func (s *swapsAtRandom) mistaken(h *swapHost) string {
	s.t.Helper()
	for _, words := range [][]string{{"drain"}, {"drain", "--to=kernel"}} {
		if p := h.overlayd(append(words, s.flags(h)...)...); p.wait(patience) != 1 || !strings.Contains(p.text(), "flanneld has the lease") {
			s.t.Errorf("%s: %v: %s", h.name, words, p.text())
		}
	}
	s.command(h, "cleanup")
	return h.name + ", flanneld, is to be drained and cleaned up by mistake"
}

// interrupted kills an overlayd while it starts, or while it hands over to the kernel.
func (s *swapsAtRandom) interrupted(h *swapHost, name string, signal unix.Signal) string {
	s.t.Helper()
	next := s.anyOverlayd()
	if h.plain.daemon == modeUserspace && s.rnd.IntN(2) == 0 {
		drain := h.overlayd(append([]string{"drain", "--to=kernel"}, s.flags(h)...)...)
		after := s.killAfter(h, 120*time.Millisecond)
		drain.wait(patience) // its daemon may be dead
		s.start(h, next)
		return fmt.Sprintf("%s drains to the kernel, is killed after %s, then %s", h.name, after, next)
	}
	s.stop(h, signal)
	first := s.anyOverlayd()
	s.launch(h, first)
	after := s.killAfter(h, 250*time.Millisecond)
	s.start(h, next)
	return fmt.Sprintf("%s, then %s for %s, then %s", name, first, after, next)
}

// killAfter kills an overlayd after some time, at most a limit.
func (s *swapsAtRandom) killAfter(h *swapHost, limit time.Duration) time.Duration {
	s.t.Helper()
	after := time.Duration(s.rnd.Int64N(int64(limit))).Round(time.Millisecond)
	<-time.After(after) // the moment is the point
	h.daemons[0].stop(unix.SIGKILL)
	return after
}

// move changes addresses of hosts that run an overlayd.
func (s *swapsAtRandom) move(signal unix.Signal) string {
	s.t.Helper()
	var hosts []*swapHost
	for _, i := range s.rnd.Perm(len(s.on)) {
		if h := s.on[i]; h.plain.daemon == modeKernel || h.plain.daemon == modeUserspace {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return "no overlayd to move"
	}
	s.unused++
	slots := []int{s.unused} // the first goes to a new address, and the next ones to those of the ones before
	for _, h := range hosts {
		slots = append(slots, h.plain.slot)
	}
	hosts = hosts[:1+s.rnd.IntN(min(3, len(hosts)))]
	what := "moves to a new address"
	if len(hosts) > 1 && s.rnd.IntN(2) == 0 {
		slots[0] = hosts[len(hosts)-1].plain.slot // or to that of the last
		what = "exchange addresses"
	} else if len(hosts) > 1 {
		what = "move, each to the address of the one before"
	}
	names := ""
	for _, h := range hosts {
		names += h.name + ", " + h.plain.daemon + ", "
	}
	if s.rnd.IntN(2) == 0 {
		s.readdress(hosts, slots)
		return names + what + ", running"
	}
	for _, h := range hosts {
		s.stop(h, signal)
	}
	s.readdress(hosts, slots)
	daemons := make([]string, len(hosts))
	for _, i := range s.rnd.Perm(len(hosts)) {
		daemons[i] = s.anyOverlayd()
		s.launch(hosts[i], daemons[i])
	}
	for i, h := range hosts {
		s.ready(h, daemons[i])
	}
	return names + what + ", " + signal.String()
}
