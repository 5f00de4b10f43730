package main

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/handover"
)

// longestPause sends one TCP stream from a to b until stop is called, which returns the longest time in
// which nothing arrived.
func longestPause(t *testing.T, a, b *pod) (stop func() time.Duration) {
	t.Helper()
	var l net.Listener
	var out net.Conn
	b.Must(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(b.addr, 0).String()); return err })
	a.Must(func() (err error) { out, err = net.Dial("tcp", l.Addr().String()); return err })
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = io.Copy(out, zeros{}) }()
	var longest atomic.Int64
	received := make(chan struct{})
	go func() {
		defer close(received)
		last := time.Now()
		for buf := make([]byte, 64<<10); ; {
			if _, err := in.Read(buf); err != nil {
				return
			}
			now := time.Now()
			longest.Store(max(longest.Load(), int64(now.Sub(last))))
			last = now
		}
	}()
	return func() time.Duration {
		out.Close()
		<-ended
		<-received
		in.Close()
		return time.Duration(longest.Load())
	}
}

// zeros is an endless stream.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestReplace: daemons take each other's place, and no datagram is lost. Each one before ends with exit
// code 0, and the lease stays.
func TestReplace(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeUserspace, modeKernel} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{mode, modeKernel})
			h := c.hosts[0]
			subnet := h.gateway()
			there, back := startMeters(t, a, b)
			for range replacements(t) {
				waitTraffic(t, there, 100)
				before := h.daemon
				h.up("--dataplane", mode, "--replace")
				if code := before.wait(patience); code != 0 {
					t.Errorf("exit code %d of the daemon that was replaced", code)
				}
				waitTraffic(t, back, 100)
			}
			gap := time.Duration(max(there.gap.Load(), back.gap.Load()))
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost, longest gap %s", lost, gap)
			}
			if got := h.gateway(); got != subnet {
				t.Errorf("subnet is %s, was %s", got, subnet)
			}
			if text := h.daemon.text(); strings.Contains(text, "packets are lost") {
				t.Errorf("logged:\n%s", text)
			}
		})
	}
}

// replacements is how often daemons take each other's place.
func replacements(t *testing.T) uint64 { return numberFrom(t, "OVERLAYD_REPLACEMENTS", 3) }

// TestReplaceUnderStream: one TCP stream goes on while daemons take each other's place. Of three runs the best counts, if
// something else on the machine disturbs the first.
func TestReplaceUnderStream(t *testing.T) {
	alone(t)
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeUserspace})
	const limit = 200 * time.Millisecond
	pause := patience
	for run := 0; run < 3 && pause > limit; run++ {
		stop := longestPause(t, a, b)
		for i := range replacements(t) {
			h := c.hosts[i%2] // the sender's, and the receiver's
			before := h.daemon
			h.up("--dataplane", modeUserspace, "--replace")
			if code := before.wait(patience); code != 0 {
				t.Errorf("exit code %d of the daemon that was replaced", code)
			}
		}
		pause = stop()
		t.Logf("the longest pause is %s", pause)
	}
	if pause > limit {
		t.Errorf("nothing arrived for %s", pause)
	}
}

// TestReplaceOlder: a daemon of a version that cannot be asked loses nothing but what it has read.
func TestReplaceOlder(t *testing.T) {
	alone(t)
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	h := c.hosts[0]
	there, back := startMeters(t, a, b)
	waitTraffic(t, there, 100)
	before := h.daemon
	replaced, removing := make(chan struct{}), make(chan struct{})
	go func() { // it would make its socket again
		defer close(removing)
		for {
			select {
			case <-replaced:
				return
			default:
				os.Remove(handover.Path(h.subnetFile))
				time.Sleep(time.Millisecond)
			}
		}
	}()
	h.up("--dataplane", modeUserspace, "--replace")
	close(replaced)
	<-removing
	if code := before.wait(patience); code != 0 {
		t.Errorf("exit code %d of the daemon that was replaced", code)
	}
	waitTraffic(t, there, 100)
	if lost := there.finish() + back.finish(); lost > 10 {
		t.Errorf("%d datagrams lost", lost)
	}
	if text := h.daemon.text(); strings.Contains(text, "packets are lost") {
		t.Errorf("logged:\n%s", text)
	}
}

// TestReplaceIsAskedFor: without the flag, and beside a daemon that does not hand over, a second daemon
// ends, and the first goes on.
func TestReplaceIsAskedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.up("--dataplane", modeUserspace)
	first := h.daemon
	socket := handover.Path(h.subnetFile)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", socket, info, err)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		p := h.overlayd(append([]string{"--etcd-endpoints", c.url, "--subnet-file", h.subnetFile, "--dataplane", modeUserspace}, args...)...)
		if code := p.wait(patience); code != 1 || !strings.Contains(p.text(), want) {
			t.Errorf("exit code %d:\n%s", code, p.text())
		}
	}
	refused("another overlayd")
	refused("does not answer", "--replace", "--etcd-endpoints", "http://192.0.2.250:1")
	if err := errors.Join(os.Remove(socket), os.MkdirAll(filepath.Join(socket, "in"), 0o700)); err != nil { // of nobody, and in its way
		t.Fatal(err)
	}
	refused("does not make room", "--replace")
	if code := first.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d of the first daemon", code)
	}
}

// TestStandBy: as kubelet's rolling update does with a Node, whose pods of before and after run beside each other: what starts again is
// the program that was replaced, unless it stands by. It ends when it is told to, or when the other one has gone. Nothing is lost.
func TestStandBy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	args := []string{"--replace", "--stand-by"}
	a, b := c.upPair([2]string{modeUserspace, modeKernel}, args...)
	h := c.hosts[0]
	there, back := startMeters(t, a, b)
	first := h.daemon
	h.up(append(args, "--dataplane", modeUserspace)...)
	second := h.daemon
	first.waitLog("standing by", patience)
	waitTraffic(t, there, 100)
	if code := first.stop(unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d of the one that stood by", code)
	}
	h.up(append(args, "--dataplane", modeUserspace)...)
	second.waitLog("standing by", patience)
	waitTraffic(t, back, 100)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	h.daemon.stop(unix.SIGKILL)
	if code := second.wait(patience); code != 0 {
		t.Errorf("exit code %d of the one that stood by for one that was killed", code)
	}
}
