package userspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// stopped ends a Run and returns how long that took.
func stopped(t *testing.T, stop func() error) time.Duration {
	t.Helper()
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// stopTries is how often a Run is ended, at most, until that is quick: more often on a busy machine, because whoever else has the
// processors, and the kernel's lock of links, is not what these tests are about.
func stopTries(quiet int) int {
	if netnstest.Busy() {
		return 10
	}
	return quiet
}

func TestRunStopsWithin100ms(t *testing.T) {
	h := newHost(t)
	best := time.Hour
	for i := 0; i < stopTries(1) && best > 100*time.Millisecond; i++ {
		d := h.open()
		h.sync(d)
		best = min(best, stopped(t, h.run(d)))
	}
	if best > 100*time.Millisecond {
		t.Errorf("Run took %v to stop", best)
	}
}

func TestRunStopsUnderTraffic(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	d := a.open()
	b.vxlan(true)
	b.vxlanPeer(a)
	done := make(chan struct{})
	var flooders [2]net.Conn
	a.pod.Must(func() (err error) { flooders[0], err = net.Dial("udp", b.podAddr().String()+":9"); return err })
	b.pod.Must(func() (err error) { flooders[1], err = net.Dial("udp", a.podAddr().String()+":9"); return err })
	for _, c := range flooders {
		go func() {
			for range 1 << 30 {
				if _, err := c.Write(make([]byte, 1000)); errors.Is(err, net.ErrClosed) {
					break
				}
			}
			done <- struct{}{}
		}()
	}
	best := time.Hour
	for i := 0; i < stopTries(3) && best > 100*time.Millisecond; i++ {
		if i > 0 {
			d = a.open()
		}
		a.sync(d, b)
		stop := a.run(d)
		eventually(t, "traffic both ways", func() bool { s := d.Stats(); return s.RxPackets > 1000 && s.TxPackets > 1000 })
		best = min(best, stopped(t, stop))
	}
	if best > 100*time.Millisecond {
		t.Errorf("Run took %v to stop", best)
	}
	for _, c := range flooders {
		c.Close()
		<-done
	}
}

// TestCloseWithoutRun: what Open acquired is free again.
func TestCloseWithoutRun(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	h.run(h.open())
	if err := d.Run(t.Context(), func() {}); err == nil {
		t.Error("Run after Close")
	}
}

func TestRunEndsWhenDeviceIsDeleted(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	done := make(chan error, 1)
	go func() { done <- d.Run(t.Context(), func() {}) }()
	l := h.link()
	h.Must(func() error { return netlink.LinkDel(l) })
	select {
	case err := <-done:
		if err == nil || !regexp.MustCompile("flannel.1 deleted|flannel.1: the device has gone").MatchString(err.Error()) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Run goes on without its device")
	}
	if _, err := d.Sync(t.Context(), h.wanted()); !errors.Is(err, errClosed) {
		t.Errorf("Sync after Run: %v", err)
	}
	d.Stats()
	h.sync(h.open()) // the way back is Open
	h.requireSynced()
}

// TestResyncRestoresRoute has somebody flush our route.
func TestResyncRestoresRoute(t *testing.T) {
	h := newHost(t)
	d := h.open()
	ctx, cancel := context.WithCancel(t.Context())
	tick, done := make(chan time.Time), make(chan struct{})
	go func() { d.resync(ctx, tick); close(done) }()
	tick <- time.Time{} // nothing is wanted yet
	h.sync(d)
	route := &netlink.Route{LinkIndex: h.link().Attrs().Index, Dst: rtnl.IPNet(testNetwork), Scope: netlink.SCOPE_LINK}
	h.Must(func() error { return netlink.RouteDel(route) })
	tick <- time.Time{}
	cancel()
	<-done
	h.requireSynced()
	h.run(d)
}

func TestTransient(t *testing.T) {
	for err, want := range map[error]bool{
		os.NewSyscallError("recvfrom", unix.ENOBUFS): true,
		fmt.Errorf("read: %w", unix.ENOMEM):          true,
		fmt.Errorf("read: %w", unix.EBADFD):          false,
		unix.ENODEV:                                  false,
		os.ErrClosed:                                 false,
		os.ErrDeadlineExceeded:                       false,
	} {
		if got := transient(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

// flaky is a receiver that fails some times, then gives one datagram, then ends.
type flaky struct {
	fails, calls int
	good         carrier.Arrival
}

func (f *flaky) Stop() {}

func (f *flaky) Receive(d *carrier.Datagram, idle func()) error {
	switch f.calls++; {
	case f.calls <= f.fails:
		return unix.ENOBUFS
	case f.calls == f.fails+1:
		d.Buf, d.From = f.good.Payload, f.good.From
		return nil
	}
	return unix.EBADFD
}

// TestWorkerSurvivesTransientErrors has ten failing reads in a row: they are one line in the log.
func TestWorkerSurvivesTransientErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := testPair(t)
		b.worker.receiver = &flaky{fails: 10, good: encapsulate(t, a, udpPacket(podA, podB, 1, 2, nil))}
		var log bytes.Buffer
		err := b.worker.run(t.Context(), waitOut(slog.New(slog.NewTextHandler(&log, nil)), "gone"))
		if !errors.Is(err, unix.EBADFD) || b.Stats().RxPackets != 1 {
			t.Errorf("ended with %v after %d packets", err, b.Stats().RxPackets)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, log.String())
		}
	})
}
