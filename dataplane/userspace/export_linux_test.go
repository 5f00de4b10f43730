package userspace

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// handOver ends a dataplane of h as a process would that is replaced, and returns the one that goes on.
func (h *testHost) handOver(d *Dataplane, stop func() error, change func(*Config)) (next *Dataplane) {
	h.tb.Helper()
	exports, err := d.Export()
	if err != nil {
		h.tb.Fatal(err)
	}
	if err := stop(); err != nil {
		h.tb.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // the next process asks its store
	cfg := h.config()
	cfg.Inherited = exports
	change(&cfg)
	h.Must(func() error { next, err = Open(cfg); return err })
	return next
}

// meter counts datagrams that are sent one in a millisecond, and those that arrive. While mostUnderWay are on their way, none is sent: a TUN
// queue holds 500, and what a machine that is slow to take over loses there is nobody's fault.
type meter struct {
	sent, arrived atomic.Uint64
}

const mostUnderWay = 400

// measure sends from one namespace to an address of another until stop is called.
func measure(t *testing.T, from, to *netnstest.NS, dst netip.Addr) (m *meter, stop func()) {
	t.Helper()
	m = new(meter)
	var in net.PacketConn
	var out net.Conn
	to.Must(func() (err error) { in, err = net.ListenPacket("udp", netip.AddrPortFrom(dst, 0).String()); return err })
	from.Must(func() (err error) { out, err = net.Dial("udp", in.LocalAddr().String()); return err })
	if err := netnstest.HoldBurst(in.(*net.UDPConn)); err != nil { // what waits comes at once, and is not to be lost here
		t.Fatal(err)
	}
	go func() {
		for b := make([]byte, 100); ; {
			if _, _, err := in.ReadFrom(b); err != nil {
				return
			}
			m.arrived.Add(1)
		}
	}()
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-quit:
				return
			case <-tick.C:
				if m.sent.Load()-m.arrived.Load() >= mostUnderWay {
					continue
				}
				if _, err := out.Write(make([]byte, 56)); err == nil {
					m.sent.Add(1)
				}
			}
		}
	}()
	t.Cleanup(func() { in.Close(); out.Close() })
	return m, func() { close(quit); <-ended }
}

// TestHandOver: one dataplane takes the queues and sockets of another again and again, and no packet is
// lost, whichever way it goes.
func TestHandOver(t *testing.T) {
	for _, offloads := range []Offloads{AllOffloads, AllOffloads &^ TUNMultiqueue, 0} {
		t.Run(offloads.String(), func(t *testing.T) {
			hosts := newHosts(t, 2, testMTU)
			a, b := hosts[0], hosts[1]
			a.offloads = offloads
			da, db := a.open(), b.open()
			a.sync(da, b)
			b.sync(db, a)
			stop := a.run(da)
			b.run(db)
			echo(t, a.pod, b.pod, b.podAddr()) // neighbours are known
			there, stopThere := measure(t, a.pod, b.pod, b.podAddr())
			back, stopBack := measure(t, b.pod, a.pod, a.podAddr())
			for range 5 {
				before := there.arrived.Load() + back.arrived.Load()
				da = a.handOver(da, stop, func(*Config) {})
				stop = a.run(da)
				a.Must(func() error { da.Resume(a.wanted(b)); return nil })
				eventually(t, "traffic goes on before the first Sync", func() bool { return there.arrived.Load()+back.arrived.Load() > before+100 })
				before = there.arrived.Load() + back.arrived.Load()
				a.sync(da, b)
				eventually(t, "traffic goes on", func() bool { return there.arrived.Load()+back.arrived.Load() > before+100 })
			}
			stopThere()
			stopBack()
			for name, m := range map[string]*meter{"there": there, "back": back} {
				eventually(t, "all that was sent "+name+" arrives", func() bool { return m.arrived.Load() >= m.sent.Load() })
				t.Logf("%s: %d of %d arrived", name, m.arrived.Load(), m.sent.Load())
			}
			transfer(t, a.pod, b.pod, b.podAddr())
		})
	}
}

// TestHandOverThatDoesNotFit: another config opens itself what does not fit, says why, closes that, and works.
func TestHandOverThatDoesNotFit(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		why    string
		inPart bool // the rest fits
	}{
		"another VNI":      {func(c *Config) { c.VNI++ }, "are not for this network", true},
		"another port":     {func(c *Config) { c.Port++ }, "are not for this network", true},
		"other offloads":   {func(c *Config) { c.Offloads &^= TUNGSO }, "has the offloads", true},
		"fewer queues":     {func(c *Config) { c.Inherited = c.Inherited[1:] }, "queues, not", true},
		"a newer version":  {func(c *Config) { c.Inherited[0].Version++ }, "has version 2, not 1", true},
		"a file too many":  {func(c *Config) { c.Inherited[0].Name = "listener" }, "queues, not", true},
		"nothing is there": {func(c *Config) { c.Inherited = nil }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			d := h.open()
			h.sync(d)
			stop := h.run(d)
			var all []carrier.Export
			var log bytes.Buffer
			next := h.handOver(d, stop, func(c *Config) {
				all = c.Inherited
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				test.change(c)
				if len(c.Inherited) < len(all) { // who hands over in part closes the rest
					carrier.CloseExports(all[:len(all)-len(c.Inherited)])
				}
			})
			if !strings.Contains(log.String(), test.why) || (test.why != "") != strings.Contains(log.String(), "cannot take over") {
				t.Errorf("logged %q, want %q", log.String(), test.why)
			}
			for _, e := range all {
				if next.in.Has(e.Name) {
					continue
				}
				if err := e.File.Close(); err == nil {
					t.Errorf("%s was still open", e.Name)
				}
			}
			if taken := next.in != nil; taken != test.inPart {
				t.Errorf("something was taken: %v", taken)
			}
			h.run(next)
			h.Must(func() error { _, err := next.Sync(t.Context(), h.wanted()); return err })
		})
	}
}

// TestInheritedIsClosed: what no first Sync has taken is closed with the dataplane.
func TestInheritedIsClosed(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	stop := h.run(d)
	next := h.handOver(d, stop, func(*Config) {})
	if _, err := next.Export(); err == nil {
		t.Error("what does not forward was exported")
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	h.run(h.open()) // neither the device nor the port is busy
}

// TestMakeRoomAfterHandOver: what goes on with another's sockets can free their port as if they were its own.
func TestMakeRoomAfterHandOver(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	da, db := a.open(), b.open()
	a.sync(da, b)
	b.sync(db, a)
	b.run(db)
	da = a.handOver(da, a.run(da), func(*Config) {})
	a.run(da)
	a.sync(da, b)
	echo(t, a.pod, b.pod, b.podAddr())
	a.Must(da.MakeRoom)
	a.Must(func() error {
		c, err := net.ListenPacket("udp4", netip.AddrPortFrom(a.addr, testPort).String())
		if err == nil {
			c.Close()
		}
		return err
	})
	echo(t, a.pod, b.pod, b.podAddr())
}

// TestInheritBesideDevice: a vxlan device that was made meanwhile does not keep the inherited sockets from being used.
func TestInheritBesideDevice(t *testing.T) {
	hosts := newHosts(t, 2, testMTU)
	a, b := hosts[0], hosts[1]
	da, db := a.open(), b.open()
	a.sync(da, b)
	b.sync(db, a)
	b.run(db)
	stop := a.run(da)
	a.Run("ip", "link", "add", "flannel-v6.1", "up", "type", "vxlan", "id", "1", "local", "::1", "dstport", "8472")
	da = a.handOver(da, stop, func(*Config) {})
	a.run(da)
	a.sync(da, b)
	echo(t, a.pod, b.pod, b.podAddr())
}

// TestRefusedConfigClosesInherited: whoever hands over to a config that makes no sense keeps no file open.
func TestRefusedConfigClosesInherited(t *testing.T) {
	h := newHost(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cfg := h.config()
	cfg.MTU, cfg.Inherited = 1, []carrier.Export{{Name: "pipe", File: r}}
	if _, err := Open(cfg); err == nil {
		t.Error("MTU 1 was taken")
	}
	if err := r.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the inherited file was open: %v", err)
	}
}

// TestInheritedSocketIsUseless: the status says why nothing is received, until a Sync has opened sockets.
func TestInheritedSocketIsUseless(t *testing.T) {
	h := newHost(t)
	d := h.open()
	h.sync(d)
	d = h.handOver(d, h.run(d), func(*Config) {})
	d.in.Of("udp " + netip.AddrPortFrom(h.addr, testPort).String())[0].Close()
	if err := h.Do(func() error { _, err := d.Sync(t.Context(), h.wanted()); return err }); err == nil {
		t.Error("Sync went on with a closed socket")
	}
	if err := d.repair(); err != nil {
		t.Error(err)
	}
	if s := d.Status(); s.State != dataplane.StateFailed || !strings.Contains(s.Err, "closed file") {
		t.Errorf("status %+v", s)
	}
	h.sync(d)
	if s := d.Status(); s.State != dataplane.StateOK {
		t.Errorf("status %+v", s)
	}
	h.run(d)
}
